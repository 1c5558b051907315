"""What is called when the program imports a module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from bestof.cli.after_import import after_import


def test_each_of_two_is_called_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As for `bestof run -m bestof profile train.py`.
    (tmp_path / "awaited.py").write_text("VALUE = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    monkeypatch.setitem(sys.modules, "awaited", None)  # is removed at the end
    del sys.modules["awaited"]
    before, called = sys.meta_path[:], []
    for one in ("first", "second"):
        after_import("awaited", lambda one=one: called.append(one))  # type: ignore[misc]
    assert importlib.util.find_spec("awaited") is not None
    assert called == []
    module = importlib.import_module("awaited")
    assert module.VALUE == 1
    assert sorted(called) == ["first", "second"]
    assert sys.meta_path == before
    assert type(module.__loader__).__module__ == "_frozen_importlib_external"


def test_a_finder_of_another_kind_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "expected.py").write_text("VALUE = 2")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path])  # has no `find_spec`
    monkeypatch.setitem(sys.modules, "expected", None)  # is removed at the end
    del sys.modules["expected"]
    called: list[int] = []
    after_import("expected", lambda: called.append(1))
    assert importlib.import_module("expected").VALUE == 2
    assert called == [1]
