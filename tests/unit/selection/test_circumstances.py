"""The circumstances that are stored with a disqualification."""

from __future__ import annotations

import re
import sys
import threading
from types import ModuleType

import pytest

from bestof.selection.trials.circumstances import circumstances, may_pass, raised


def test_an_error_may_pass_and_a_wrong_result_may_not() -> None:
    assert may_pass(raised(ValueError("no")))
    assert may_pass("supports raised KeyError: 1")
    assert not may_pass("wrong result: off by 4")


def test_the_date_and_the_thread_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert re.fullmatch(r"on \d{4}-\d\d-\d\d \d\d:\d\d UTC", circumstances())
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(circumstances()), name="loader")
    thread.start()
    thread.join()
    assert told[0].endswith("UTC, in thread loader")


def test_the_modes_of_pytorch_are_recorded() -> None:
    torch = pytest.importorskip("torch")
    with torch.device("meta"), torch.no_grad():
        assert circumstances().endswith("without gradients, under the default device meta")
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert circumstances().endswith("in inference mode, under autocast")


def test_a_pytorch_that_cannot_be_asked_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert circumstances().endswith(" UTC")
