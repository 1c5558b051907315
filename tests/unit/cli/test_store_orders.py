"""`bestof store` over files: pins, lock files, explanations, and the engine that obeys what was
ordered."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bestof import BestOf
from bestof.cli import main
from bestof.selection import open_store
from bestof.selection.store import sqlite_schema
from bestof.selection.store.protocol import Store
from bestof.selection.store.record import Child, Evidence, Pin, Record

RECORDS = [
    Record(
        "conv",
        "(3,)",
        "here",
        "fast",
        (
            Evidence("slow", "1", (2.0,), None, ()),
            Evidence("fast", "1", (1.0, 1.0), None, (Child("sort", "'n'"), Child("gone", "1"))),
        ),
        1e9,
    ),
    Record("conv", "(4,)", "there", None, (Evidence("slow", "1", (2.0,)),), 1e9),
    Record(
        "sort",
        "'n'",
        "here",
        "quick",
        (Evidence("quick", "1", (0.5,)), Evidence("bad", "1", (), "wrong")),
        1e9,
    ),
]


class Stores:
    """Store files in one folder, by their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def open(self, name: str) -> Store:
        store = open_store(self.path(name))
        assert store is not None
        return store

    def filled(self, name: str, *records: Record) -> str:
        store = self.open(name)
        for record in records:
            store.save(record)
        store.close()
        return self.path(name)

    def content(self, name: str) -> tuple[list[Record], list[Pin]]:
        store = self.open(name)
        try:
            return store.records(), store.pins()
        finally:
            store.close()


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def bestof(*arguments: str) -> int:
    return main(["store", *arguments])


def test_pins_are_given_shown_and_taken_back(
    stores: Stores, capsys: pytest.CaptureFixture[str]
) -> None:
    url = stores.filled("own", *RECORDS)
    assert bestof("pin", "conv", "slow", "--store", url) == 0
    assert bestof("pin", "conv", "fast", "--problem", "(3,)", "--host", "here", "--store", url) == 0
    assert bestof("pin", "sort", "quick", "--store", url) == 0
    capsys.readouterr()
    assert bestof("show", "--selector", "conv", "--store", url) == 0
    pins = [line for line in capsys.readouterr().out.splitlines() if line.startswith("pinned: ")]
    assert pins == [
        "pinned: conv = slow, every problem, every host",
        "pinned: conv = fast, (3,), host here",
    ]
    assert bestof("show", "--json", "--store", url) == 0
    shown = json.loads(capsys.readouterr().out)["pins"]
    assert shown[1] == {
        "selector": "conv",
        "alternative": "fast",
        "problem": "(3,)",
        "host": "here",
    }
    assert bestof("unpin", "conv", "--problem", "(3,)", "--store", url) == 1
    assert bestof("unpin", "conv", "--problem", "(3,)", "--host", "here", "--store", url) == 0
    assert stores.content("own")[1] == [Pin("conv", "slow"), Pin("sort", "quick")]


def test_clear_leaves_pins(stores: Stores) -> None:
    url = stores.filled("own", *RECORDS)
    bestof("pin", "conv", "slow", "--store", url)
    assert bestof("clear", "--yes", "--store", url) == 0
    assert stores.content("own") == ([], [Pin("conv", "slow")])


def test_export_import_gives_the_same_records_and_pins(
    stores: Stores, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url, lock = stores.filled("own", *RECORDS), str(tmp_path / "bestof.lock")
    bestof("pin", "conv", "slow", "--problem", "(3,)", "--store", url)
    assert bestof("export", lock, "--store", url) == 0
    assert bestof("import", lock, "--store", stores.path("other")) == 0
    assert "exported 3 problems and 1 pin to" in capsys.readouterr().out
    assert stores.content("other")[1] == [Pin("conv", "slow", "(3,)")]
    again = str(tmp_path / "again.lock")
    assert bestof("export", again, "--store", stores.path("other")) == 0
    assert Path(again).read_text() == Path(lock).read_text()
    capsys.readouterr()
    assert bestof("export", "--store", url) == 0
    assert capsys.readouterr().out == Path(lock).read_text()


def test_import_reads_the_standard_input(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "bestof.lock"
    bestof("export", str(lock), "--store", stores.filled("own", *RECORDS))
    with lock.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert bestof("import", "-", "--store", stores.path("other")) == 0
    assert len(stores.content("other")[0]) == 3


@pytest.mark.parametrize("verb", ["import", "merge"])
def test_what_comes_in_is_united_and_an_older_decision_does_not_win(
    stores: Stores, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Record(
        "conv", "p", "h", "a", (Evidence("a", "1", (1.0,)), Evidence("b", "1", (2.0,))), 1.0
    )
    new = Record(
        "conv", "p", "h", "b", (Evidence("b", "1", (0.5, 0.5)), Evidence("c", "1", (3.0,))), 2.0
    )
    lock = str(tmp_path / "old.lock")
    theirs, ours = stores.filled("theirs", old), stores.filled("ours", new)
    bestof("pin", "conv", "theirs", "--store", theirs)
    bestof("pin", "conv", "ours", "--store", ours)
    bestof("export", lock, "--store", theirs)
    capsys.readouterr()
    assert bestof(verb, lock, "--store", ours) == 0
    (record,), (pin,) = stores.content("ours")
    assert record.decision == "b"
    assert {item.alternative: item.samples for item in record.evidence} == {
        "a": (1.0,),
        "b": (0.5, 0.5),
        "c": (3.0,),
    }
    assert pin.alternative == {"import": "theirs", "merge": "ours"}[verb]
    assert ("1 pin of the store won" in capsys.readouterr().out) is (verb == "merge")


def test_a_damaged_lock_file_changes_nothing(stores: Stores, tmp_path: Path) -> None:
    lock = tmp_path / "bad.lock"
    lock.write_text('{"format": 1, "records": [], "pins": [{"selector": "conv"}]}')
    url = stores.filled("own", *RECORDS)
    before = stores.content("own")
    assert bestof("merge", str(lock), "--store", url) == 1
    assert stores.content("own") == before


def test_an_import_is_one_transaction(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault at the very last pin: neither the records nor the other pins are kept."""
    lock = str(tmp_path / "bestof.lock")
    theirs = stores.filled("theirs", *RECORDS)
    for name in ("conv", "sort"):
        bestof("pin", name, "slow", "--store", theirs)
    bestof("export", lock, "--store", theirs)
    url = stores.filled("own", RECORDS[1])
    before = stores.content("own")
    write_pin = sqlite_schema.write_pin

    def failing(connection: sqlite3.Connection, pin: Pin) -> None:
        if pin.selector == "sort":
            raise sqlite3.OperationalError("disk I/O error")
        write_pin(connection, pin)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_schema, "write_pin", failing)
        assert bestof("import", lock, "--store", url) == 1
    assert stores.content("own") == before
    assert bestof("import", lock, "--store", url) == 0
    records, pins = stores.content("own")
    assert [record.key for record in records] == [record.key for record in RECORDS]
    assert pins == stores.content("theirs")[1]


@pytest.mark.parametrize(
    ("pin", "says"),
    [
        (["cnov", "slow"], "no selector of this name is in the store; it has conv, sort"),
        (["conv", "slwo"], "no alternative of this name is in the store; it has fast, slow"),
        (["conv", "slow", "--problem", "(9,)"], "this problem is not in the store"),
        (["conv", "slow", "--host", "nowhere"], "this host is not in the store"),
        (["conv", "slow", "--problem", "(3,)", "--host", "here"], None),
    ],
)
def test_a_pin_without_effect_is_reported(
    stores: Stores, capsys: pytest.CaptureFixture[str], pin: list[str], says: str | None
) -> None:
    url = stores.filled("own", *RECORDS)
    assert bestof("pin", *pin, "--store", url) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"pinned {pin[0]} = {pin[1]}, ")
    expected = "" if says is None else f"bestof: this pin has no effect so far: {says}"
    assert told.err.startswith(expected)
    assert bool(told.err) is (says is not None)


def test_escape_sequences_in_names_are_shown_as_text(
    stores: Stores, capsys: pytest.CaptureFixture[str]
) -> None:
    red = "\x1b[31mred\x1b[0m\r"
    evidence = (Evidence(red, "1", (1.0,)), Evidence("b", "1", (), red))
    url = stores.filled("own", Record(red, red, red, red, evidence, 1e9))
    for command in (
        ["pin", red, red, "--problem", red, "--host", red],
        ["show"],
        ["show", "--json"],
        ["explain", red],
        ["explain", red, "--json"],
        ["explain", red, red + "x"],
        ["unpin", red],
        ["unpin", red, "--problem", red, "--host", red],
        ["export"],
    ):
        bestof(*command, "--store", url)
        told = capsys.readouterr()
        assert "\x1b" not in told.out + told.err, command
        assert "\r" not in told.out + told.err, command
        assert "x1b[31m" in told.out + told.err or "u001b[31m" in told.out, command


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert bestof("explain", *arguments, "--json") == 0
    content: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return content


def test_explain_shows_reason_time_host_and_inner_choices(
    stores: Stores, capsys: pytest.CaptureFixture[str]
) -> None:
    url = stores.filled("own", *RECORDS)
    assert bestof("explain", "conv", "--store", url) == 0
    out = capsys.readouterr().out
    for words in (
        "host: here",
        "host: there",
        "conv (3,) (",
        "days ago): fast has the lowest median, 50.0 % below that of slow, the next",
        "sort 'n' (",
        "quick is the only alternative with samples, after bad was disqualified",
        "unsettled: the search goes on at the next run; slow leads so far",
        "decision tree",
    ):
        assert words in out
    one, inner = explained(capsys, "conv", "(3,)", "--store", url)
    assert (one["problem"], one["host"], one["decision"], one["pinned"]) == (
        "(3,)",
        "here",
        "fast",
        None,
    )
    assert one["evidence"][0]["seconds"] == 2.0
    assert inner["selector"] == "sort"
    assert len(explained(capsys, "conv", "--store", url)) == 3


def test_explain_tells_of_the_pin_that_is_closest(
    stores: Stores, capsys: pytest.CaptureFixture[str]
) -> None:
    url = stores.filled("own", *RECORDS)
    bestof("pin", "conv", "fast", "--store", url)
    bestof("pin", "conv", "slow", "--problem", "(3,)", "--store", url)
    one, _, other = sorted(
        explained(capsys, "conv", "--store", url), key=lambda one: (one["host"], one["selector"])
    )
    assert (one["pinned"], other["pinned"]) == ("slow", "fast")
    assert one["why"].startswith(
        "pinned: slow is taken without measuring; without the pin: fast has the lowest"
    )


SELECTOR = """
import sys
from bestof import BestOf
selector = BestOf("it", [("a", lambda n: "a"), ("b", lambda n: "b")], lambda n: n, rounds=3)
print(*(selector(1) for _ in range(9)), selector.explain(1).source)
"""


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(SELECTOR)
    return subprocess.run(
        [sys.executable, "-m", "bestof", "run", "program.py"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.parametrize("name", ["a", "b"])
def test_pins_that_went_through_a_lock_file_are_obeyed(
    stores: Stores, tmp_path: Path, name: str
) -> None:
    lock = str(tmp_path / "bestof.lock")
    own = stores.filled("own")
    assert bestof("pin", "it", name, "--store", own) == 0
    assert bestof("export", lock, "--store", own) == 0
    assert bestof("import", lock, "--store", stores.path("other")) == 0
    selector = BestOf(
        "it", [("a", lambda n: "a"), ("b", lambda n: "b")], lambda n: n, store=stores.path("other")
    )
    assert [selector(1) for _ in range(3)] == [name] * 3
    assert selector.explain(1).source == "pinned"
    ended = run(tmp_path, BESTOF_STORE=stores.path("other"))
    assert ended.stdout == " ".join([name] * 9) + " pinned\n"


def test_force_reaches_a_program_under_bestof_run(stores: Stores, tmp_path: Path) -> None:
    url = stores.filled("own")
    bestof("pin", "it", "a", "--store", url)
    ended = run(tmp_path, BESTOF_FORCE="it=b", BESTOF_STORE=url)
    assert (ended.returncode, ended.stdout) == (0, "b b b b b b b b b forced\n")
    wrong = run(tmp_path, BESTOF_FORCE="it=c")
    assert wrong.returncode == 1
    assert (
        "InvalidArgument: BestOf('it'): BESTOF_FORCE: expected one of a, b, got 'c'" in wrong.stderr
    )
