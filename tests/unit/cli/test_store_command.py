"""`bestof store` and `bestof report`, over a fake store."""

from __future__ import annotations

import io
import json
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from bestof import selection
from bestof.cli import main
from bestof.errors import StoreError
from bestof.selection.record import Evidence, Record
from bestof.selection.report import AlternativeReport, ProblemReport, Report, SelectorReport
from bestof.view import render

LONG = "x " + ", ".join(f"axis {i}" for i in range(40))
RECORDS = [
    Record("conv", LONG, "here", "fast", (Evidence("slow", "1", (2.0, 2.0)), Evidence("fast", "1", (1.0,))), 0.0),
    Record("sort", "n=3", "here", None, (), 0.0),
]
TRIED = (AlternativeReport("quick", "chosen", 1e-3, trials=1),)
REPORT = Report((SelectorReport("sort", 1, (ProblemReport("n=3", "quick", "stored", TRIED),)),))


class FakeStore:
    """Keeps records in a list."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.kept = list(RECORDS)
        self.closed = False

    def records(self, selector: str | None = None) -> Iterable[Record]:
        return [record for record in self.kept if selector in (None, record.selector)]

    def clear(self, selector: str | None = None) -> int:
        before = len(self.kept)
        self.kept = [record for record in self.kept if selector not in (None, record.selector)]
        return before - len(self.kept)

    def save(self, record: Record) -> None:
        self.kept.append(record)

    def close(self) -> None:
        self.closed = True


def _import(text: str) -> list[Record]:
    if not text.startswith("fake of"):
        raise StoreError("this is no lock file")
    return [Record("new", text, "there", "fast", (), 0.0)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStore]:
    store = FakeStore("fake:own")
    monkeypatch.setattr(selection, "default_store", lambda: store, raising=False)
    monkeypatch.setattr(selection, "open_store", lambda url: None if url == "off" else store, raising=False)
    monkeypatch.setattr(selection, "store_report", lambda store: REPORT, raising=False)
    lock_file = types.ModuleType("bestof.selection.store.lock_file")
    vars(lock_file).update(export_records=lambda records: f"fake of {len(records)}", import_records=_import)
    monkeypatch.setitem(sys.modules, lock_file.__name__, lock_file)
    # The subcommand is imported anew around the fake, and once more after it.
    monkeypatch.delitem(sys.modules, "bestof.cli.store", raising=False)
    yield store
    sys.modules.pop("bestof.cli.store", None)


def test_show_prints_every_problem_whole(store: FakeStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "show"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("fake:own: 2 problems\n")
    for word in ("conv", "axis 39", "fast", "3", "sort", "n=3", "unsettled", "days"):
        assert word in out
    assert "…" not in out
    assert store.closed


def test_show_of_one_selector_as_json(store: FakeStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "show", "--selector", "conv", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["selector"], record["decision"]) == ("conv", "fast")
    assert record["evidence"][0]["samples"] == [2.0, 2.0]


def test_clear_wants_to_be_told_twice(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["store", "clear"]) == 2
    assert store.kept == RECORDS
    assert "--yes" in capsys.readouterr().err
    assert main(["store", "clear", "--selector", "sort", "--yes"]) == 0
    assert store.kept == RECORDS[:1]
    assert "forgot 1 problem of" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "status", "left"), [("y\n", 0, 0), ("n\n", 1, 2), ("", 1, 2)])
def test_clear_asks_at_a_terminal(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch, answer: str, status: int, left: int
) -> None:
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert main(["store", "clear"]) == status
    assert len(store.kept) == left


def test_export_and_import(store: FakeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "export"]) == 0
    assert capsys.readouterr().out == "fake of 2\n"
    path = str(tmp_path / "lock.json")
    assert main(["store", "export", path]) == 0
    assert main(["store", "import", path, "--store", "fake:other"]) == 0
    assert store.kept[-1].problem == "fake of 2\n"


def test_import_reads_the_standard_input(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("fake of 9"))
    assert main(["store", "import", "-"]) == 0
    assert store.kept[-1].problem == "fake of 9"


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (["store", "import", "nowhere.json"], 2, "nowhere.json"),
        (["store", "import", __file__], 1, "no lock file"),
        (["store", "export", "no/where/at.all"], 2, "no/where/at.all"),
        (["store", "show", "--store", "off"], 1, "the store is off"),
        (["report", "--store", "off"], 1, "the store is off"),
        (["report", "nowhere.json"], 2, "nowhere.json"),
        (["report", __file__], 1, "is not a report"),
        (["report", "x.json", "--store", "fake:"], 2, "one of them"),
        (["report", "--html", "x.pdf"], 2, ".html"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    store: FakeStore, arguments: list[str], status: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bestof: ")
    assert err.count("\n") == 1
    assert word in err


@pytest.mark.parametrize(
    "arguments", [["store"], ["store", "polish"], ["store", "import"], ["report", "--json", "--html", "x.html"]]
)
def test_wrong_usage_ends_with_2(store: FakeStore, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_report_of_the_store(store: FakeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 0
    assert capsys.readouterr().out == render(REPORT) + "\n"
    assert main(["report", "--json"]) == 0
    assert capsys.readouterr().out == render(REPORT, "json") + "\n"
    page = tmp_path / "page.html"
    assert main(["report", "--html", str(page)]) == 0
    assert page.read_text() == render(REPORT, "html") + "\n"


def test_report_of_a_file(store: FakeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Report((SelectorReport("other", 1, REPORT.selectors[0].problems),))
    path = tmp_path / "saved.json"
    path.write_text(render(other, "json"))
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out == render(other) + "\n"
