"""`bestof store push` and `pull`, between a file and a PostgreSQL server."""

from __future__ import annotations

from pathlib import Path

import pytest

from bestof.cli import main
from bestof.selection import open_store
from bestof.selection.store.record import Evidence, Pin, Record
from postgresql_server import shared

HERE = Record("conv", "(3,)", "here", "fast", (Evidence("fast", "1", (1.0,)),), 1.0)
THERE = Record("conv", "(3,)", "there", "slow", (Evidence("slow", "1", (2.0,)),), 1.0)


@pytest.fixture(params=["file", "postgresql"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    return str(tmp_path / "other") if request.param == "file" else shared().empty_url()


@pytest.fixture
def own(tmp_path: Path) -> str:
    return str(tmp_path / "own")


def fill(url: str, records: list[Record], *pins: Pin) -> None:
    store = open_store(url)
    assert store is not None
    store.unite(records, pins)
    store.close()


def contents(url: str) -> tuple[list[Record], list[Pin]]:
    store = open_store(url)
    assert store is not None
    found = store.contents()
    store.close()
    return found


def test_push_and_pull_merge_and_keep_the_pins_of_the_target(
    own: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(own, [HERE], Pin("conv", "fast"), Pin("mine", "a"))
    fill(other, [THERE], Pin("conv", "slow"), Pin("theirs", "b"))
    assert main(["store", "push", "--store", own, other]) == 0
    shown = open_store(other)
    assert shown is not None
    assert capsys.readouterr().out == (
        f"pushed 1 problem and 1 pin into {shown.url}; 1 pin of that store stayed\n"
    )
    shown.close()
    theirs = [Pin("conv", "slow"), Pin("mine", "a"), Pin("theirs", "b")]
    assert contents(other) == ([HERE, THERE], theirs)
    assert contents(own) == ([HERE], [Pin("conv", "fast"), Pin("mine", "a")])
    assert main(["store", "pull", "--store", own, other]) == 0
    assert contents(own) == ([HERE, THERE], [Pin("conv", "fast"), *theirs[1:]])
    assert contents(other) == ([HERE, THERE], theirs)


@pytest.mark.parametrize("action", ["push", "pull"])
def test_a_store_that_does_not_answer_is_an_error_and_changes_nothing(
    own: str, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(own, [HERE])
    url = shared().url("none_such")
    assert main(["store", action, "--store", own, url]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert 'FATAL: database "none_such" does not exist' in printed.err
    assert contents(own) == ([HERE], [])


@pytest.mark.parametrize("action", ["show", "explain", "export", "clear"])
def test_an_action_on_a_store_that_does_not_answer_fails(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["conv"] if action == "explain" else []
    assert main(["store", action, "--store", shared().url("none_such"), *more]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "cannot be read: connection" in printed.err


@pytest.mark.parametrize("url", ["off", "redis:x", "postgresql://u:hid@den@h/d"])
def test_a_wrong_url_is_wrong_usage(own: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "push", "--store", own, url]) == 2
    printed = capsys.readouterr()
    assert "URL: " in printed.err
    assert "den" not in printed.err
