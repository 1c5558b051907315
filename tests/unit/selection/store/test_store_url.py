"""The URLs of stores, and the default store."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bestof.errors import StoreError
from bestof.selection.store.default import cache_folder, close_default_store, default_store
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.protocol import Store
from bestof.selection.store.record import Record
from bestof.selection.store.sqlite import SqliteStore
from bestof.selection.store.url import open_store

RECORD = Record("s", "p", "h", "a", (), 1.0)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    close_default_store()
    monkeypatch.delenv("BESTOF_STORE", raising=False)
    yield
    close_default_store()


@pytest.mark.parametrize("text", ["off", "OFF", "Off", " off "])
def test_off_is_no_store(text: str) -> None:
    assert open_store(text) is None


@pytest.mark.parametrize(
    "text", ["memory:", "memory", "MEMORY", "Memory:", ":memory:", "sqlite:///:memory:"]
)
def test_memory(text: str) -> None:
    assert isinstance(open_store(text), MemoryStore)


@pytest.mark.parametrize(
    "word", ["0", "1", "no", "None", "FALSE", "true", "on", "default", "sqlite", "PostgreSQL"]
)
def test_a_word_that_looks_like_a_setting_is_refused_and_makes_no_file(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=f"{word}' looks like a setting.*'off'.*'memory:'") as told:
        open_store(word)
    assert f"'./{word}'" in str(told.value)
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_a_file_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("OFF", "off", "memory", "None", "0")
    for url in (*map("./{}".format, names), *map("sqlite:///{}".format, names), *map(Path, names)):
        store = open_store(url)
        assert isinstance(store, SqliteStore), url
        store.close()
    assert isinstance(open_store("decisions"), SqliteStore)


@pytest.mark.parametrize("form", ["sqlite:///{}", "{}"])
def test_a_file_by_url_and_by_path(tmp_path: Path, form: str) -> None:
    store = open_store(form.format(tmp_path / "d e.sqlite"))
    assert isinstance(store, SqliteStore)
    assert store.url == f"sqlite:///{tmp_path / 'd e.sqlite'}"
    store.save(RECORD)
    assert store.flush(60.0)
    again = open_store(store.url)
    assert again is not None
    assert list(again.records()) == [RECORD]
    again.close()
    store.close()


def test_a_path_object_a_relative_path_and_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    stores = [open_store(url) for url in (tmp_path / "x", "x", "sqlite:///x", "./x", "~/x")]
    urls = [store.url for store in stores if store is not None]
    assert urls == [f"sqlite:///{tmp_path / 'x'}"] * 4 + [f"sqlite:///{tmp_path / 'home' / 'x'}"]


@pytest.mark.parametrize(
    "url", ["", "postgresql:/h/d", "sqlite:", "sqlite://x", "sqlite:///", "redis:x"]
)
def test_the_error_for_a_wrong_store_names_the_accepted_ones(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="'off', 'memory:', 'sqlite:///PATH' or a plain PATH"):
        open_store(url)


def test_the_default_store_is_one_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOF_STORE", str(tmp_path / "d"))
    found = []
    threads = [threading.Thread(target=lambda: found.append(default_store())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(store) for store in found}) == 1
    assert found[0] is not None
    assert found[0].url == f"sqlite:///{tmp_path / 'd'}"


def test_off_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESTOF_STORE", "off")
    assert default_store() is None
    monkeypatch.setenv("BESTOF_STORE", "memory:")
    assert default_store() is None
    close_default_store()
    assert isinstance(default_store(), MemoryStore)


def test_a_wrong_setting_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESTOF_STORE", "postgresql:/h/d")
    with pytest.raises(StoreError, match="postgresql:/h/d"):
        default_store()


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of Linux")
def test_the_cache_folder_is_that_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    store = default_store()
    assert store is not None
    assert store.url == f"sqlite:///{tmp_path}/xdg/bestof/decisions.sqlite"


@pytest.mark.parametrize(
    ("platform", "variable", "folder"),
    [
        ("darwin", None, "Library/Caches"),
        ("win32", None, "AppData/Local"),
        ("win32", "LOCALAPPDATA", "set"),
    ],
)
def test_the_cache_folders_of_other_systems(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    variable: str | None,
    folder: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not this"))
    if variable is not None:
        monkeypatch.setenv(variable, str(tmp_path / folder))
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == tmp_path / folder


@pytest.mark.parametrize("home", ["a file", "no home", "a folder for a file"])
def test_a_home_that_cannot_be_used_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if home == "a file":
        (tmp_path / "home").touch()
    elif home == "a folder for a file":
        path = tmp_path / "home" / ".cache" / "bestof" / "decisions.sqlite"
        path.mkdir(parents=True)
    else:

        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", no_home)
    with pytest.warns(RuntimeWarning, match="in memory") as told:
        store = default_store()
    assert len(told) == 1
    assert "BESTOF_STORE" in str(told[0].message)
    assert os.path.basename(told[0].filename) == os.path.basename(__file__)
    assert isinstance(store, MemoryStore)
    assert default_store() is store


def written(store: Store) -> None:
    store.save(RECORD)
    assert store.flush(60.0)


def test_rubbish_in_the_cache_folder_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bestof.selection.store.default.cache_folder", lambda: tmp_path)
    (tmp_path / "bestof").mkdir()
    (tmp_path / "bestof" / "decisions.sqlite").write_text("rubbish")
    store = default_store()
    assert store is not None
    with pytest.warns(RuntimeWarning, match="damaged-1"):
        written(store)
    assert list(store.records()) == [RECORD]
