"""Kernels in C++ are tried on known tensors before they are put in, in a child process first."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import bestof.torch as bt
from bestof.errors import BestofWarning
from bestof.torch.backends import shim
from bestof.torch.dispatch import probe, registration
from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.enable import _State


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_State, "told", set())
    registration.objection.cache_clear()
    yield
    registration.objection.cache_clear()


def test_this_release_takes_kernels_in_cpp() -> None:
    assert registration.objection() is None
    assert registration.try_registration() is None  # the first trial has left nothing


def test_an_unknown_release_is_tried_in_a_child_process_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    bt.enable()
    override = operation_override("product")
    assert override is not None
    assert override.is_registered
    kept = json.loads((tmp_path / "bestof" / "registration.json").read_text())
    assert kept["objection"] is None
    assert kept["build"][0] == "2.99.0"
    bt.disable()
    monkeypatch.setattr(probe.subprocess, "run", None)  # no second child
    registration.objection.cache_clear()
    assert registration.objection() is None


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"build": 3}', "\0"])
def test_a_damaged_file_is_written_anew(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    place = tmp_path / "bestof" / "registration.json"
    place.parent.mkdir()
    place.write_text(damage)
    child = subprocess.CompletedProcess(
        [], 0, stdout=f"a library's line\n{probe._VERDICT}null\nmore"
    )
    monkeypatch.setattr(probe.subprocess, "run", lambda *_, **__: child)
    assert registration.objection() is None
    assert json.loads(place.read_text())["objection"] is None


def test_a_child_that_crashes_leaves_operations_to_pytorch_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o700)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.warns(BestofWarning, match=r"2\.99\.0 keeps .*: product; .* status -11"):
        bt.enable()
    override, pooling = operation_override("product"), operation_override("max pooling")
    assert override is not None
    assert not override.is_registered
    assert override.calls.totals() == {}
    assert pooling is not None
    assert pooling.is_registered  # by Python
    assert [name for name, _ in bt.summary().left_out] == ["product"]
    a = torch.randn(300, 300)
    right = a @ a
    for _ in range(4):
        assert torch.equal(a @ a, right)
    bt.disable()
    assert bt.summary().left_out == ()
    bt.enable()  # says nothing more


@pytest.mark.parametrize("case", [probe._products, probe._attention, probe._boxed])
@pytest.mark.parametrize("fault", ["arguments", "results"])
def test_a_difference_is_found(case: Any, fault: str) -> None:
    """Tensors arrive as others, as if they were read where they do not lie."""
    conversions = shim.handle_conversions()
    assert conversions is not None
    to_tensors, to_handle = conversions
    wrong = {
        "arguments": (lambda handles: [one + 1 for one in to_tensors(handles)], to_handle),
        "results": (to_tensors, lambda tensor: to_handle(tensor + 1)),
    }
    found = probe.try_all(wrong[fault], [case])
    assert found is not None
    assert "in place of" in found


def test_what_pytorch_is_to_answer_must_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_NEVER", 0.0)
    conversions = shim.handle_conversions()
    assert conversions is not None
    for case in (probe._attention, probe._boxed):
        found = probe.try_all(conversions, [case])
        assert found is not None
        assert "a call gave" in found


@pytest.mark.parametrize("status", [-9, 1, 0])
def test_a_child_that_fails_by_accident_is_asked_again(
    status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    child = subprocess.CompletedProcess([], status, stdout="")
    monkeypatch.setattr(probe.subprocess, "run", lambda *_, **__: child)
    assert f"status {status}" in str(registration.objection())
    assert [*tmp_path.iterdir()] == []


def test_a_child_that_takes_too_long_says_so_and_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probe, "_CHILD", "import time\ntime.sleep(60)")
    monkeypatch.setattr(probe, "_SECONDS", 0.01)
    said = probe.said_by_child()
    assert said is not None
    assert "did not end within 0 seconds" in said
    assert "sleep" not in said  # the program of the child is nothing to read
    assert not (tmp_path / "bestof" / "registration.json").exists()


def test_a_child_starts_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sitecustomize of the user may enable bestof in every process."""
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    monkeypatch.setenv(probe._TRYING, "1")
    monkeypatch.setattr(probe.subprocess, "run", None)
    assert registration.objection() == "it is being tried"


def test_a_user_without_a_home_folder_is_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("no home folder")

    monkeypatch.setattr(torch, "__version__", "2.99.0")
    monkeypatch.setattr(probe, "cache_folder", fail)
    child = subprocess.CompletedProcess([], 0, stdout=f"{probe._VERDICT}null")
    monkeypatch.setattr(probe.subprocess, "run", lambda *_, **__: child)
    assert registration.objection() is None
