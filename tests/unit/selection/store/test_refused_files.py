"""Files of other programs or newer versions, and impossible places, are refused unchanged."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from stored_records import NEW, made, save_all

from bestof.errors import StoreError
from bestof.selection.store.sqlite import SqliteStore


def _other_application(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA application_id = 77")
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()


def _newer(path: Path) -> None:
    made(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another application": (_other_application, "another program"),
    "newer schema": (_newer, "schema version 99"),
    "text": (lambda path: path.write_text("select = 'everything'\n" * 50), "no SQLite database"),
    "short text": (lambda path: path.write_text("x"), "no SQLite database"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_files_of_other_programs_are_refused_and_unchanged(tmp_path: Path, kind: str) -> None:
    make, message = REFUSED[kind]
    path = tmp_path / "notes.txt"
    make(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=message) as caught:
        SqliteStore(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_database_with_tables_and_without_an_identity_is_refused_by_the_first_use(
    tmp_path: Path,
) -> None:
    path = tmp_path / "decisions.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    before = path.read_bytes()
    store = SqliteStore(path)
    with pytest.warns(RuntimeWarning, match="another program") as told:
        assert not save_all(store, [NEW])
    assert store.load(*NEW.key) == NEW, "and no second warning"
    assert len(told) == 1
    with pytest.raises(StoreError, match="another program"):
        store.pin("s", "a")
    with pytest.warns(RuntimeWarning, match="decisions are lost: 1"):
        store.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (
            "/dev/null",
            "the store must be a regular file, but '/dev/null' is a device; "
            "pass a path such as 'decisions.sqlite'",
        ),
        ("{}", "the store must be a regular file, but '{}' is a folder; pass a path such as '{}/d"),
        ("{}/typo/d", "the store '{}/typo/d' cannot be made: the folder '{}/typo' does not exist"),
    ],
)
def test_a_place_where_no_store_can_be_is_refused(tmp_path: Path, path: str, says: str) -> None:
    with pytest.raises(StoreError) as caught:
        SqliteStore(path.replace("{}", str(tmp_path)))
    assert says.replace("{}", str(tmp_path)) in str(caught.value)
    assert list(tmp_path.iterdir()) == []
