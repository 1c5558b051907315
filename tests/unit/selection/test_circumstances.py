"""The circumstances that are stored with a disqualification."""

from __future__ import annotations

import re
import sys
import threading
from types import ModuleType
from typing import Any

import pytest
from fake_program import Program

from bestof import Alternative, BestOf
from bestof.selection.store.memory import MemoryStore
from bestof.selection.trials.circumstances import circumstances, may_pass, raised


def test_an_error_may_pass_and_a_wrong_result_may_not() -> None:
    assert may_pass(raised(ValueError("no")))
    assert may_pass("supports raised KeyError: 1")
    assert not may_pass("wrong result: off by 4")


@pytest.mark.filterwarnings("ignore:.*was disqualified")
@pytest.mark.parametrize("asked", ["supports", "unpromising", "estimate", "hopeless", "check"])
def test_a_function_that_was_mended_is_asked_again(program: Program, asked: str) -> None:
    store = MemoryStore()

    def made(answer: Any) -> BestOf:
        def ask(*_: object) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        own: dict[str, Any] = {} if asked == "check" else {asked: ask}
        slow = Alternative("slow", program.function("same", 3.0), ("1",))
        quick = Alternative("quick", program.function("same", 1.0), ("1",), **own)
        other = Alternative("other", program.function("same", 2.0), ("1",))
        check = ask if asked == "check" else None
        return program.selector([slow, quick, other], store=store, check=check)

    broken = made(LookupError("a mistake"))
    assert [broken(1) for _ in range(9)] == ["same"] * 9
    reason = broken.explain(1).alternatives[1].reason
    assert reason is not None
    assert f"{asked} raised LookupError: a mistake" in reason
    mended = made({"unpromising": None, "hopeless": False, "estimate": 1.0}.get(asked, True))
    for _ in range(9):
        mended(1)
    assert mended.chosen((1,)) == "quick"


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
