"""What settled calls hold: changes by other threads, copies, memory; natively and in Python."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
import weakref
from contextlib import suppress
from typing import Any

import pytest
from settled_selector import (
    answers_itself,
    first_argument,
    make_selector,
    make_winner,
    second_stage,
)

from bestof.errors import ProblemError
from bestof.selection import hot_path
from bestof.selection.hot_path import NativeHotPath, PythonHotPath


class Importable(PythonHotPath):
    """A subclass that pickle finds by its name."""


if NativeHotPath is not None:

    class NativeImportable(NativeHotPath):  # type: ignore[valid-type,misc]  # chosen at run time
        """The same, native."""


def test_the_dict_of_winners_may_be_replaced_during_a_call(kind: type[PythonHotPath]) -> None:
    class Swaps:
        """While it is compared with a key, the dict that holds the key is let go."""

        def __init__(self, selector: Any) -> None:
            self.selector = selector

        def __hash__(self) -> int:
            return hash(1)

        def __eq__(self, other: object) -> bool:
            self.selector._settled = {}
            gc.collect()
            return other == 1

    selector = make_selector(kind)
    problem = Swaps(selector)
    assert selector(problem) == ("winner", (problem,), {})
    assert selector(1) == "long way"
    selector._settled = {1: make_winner(kind, second_stage)}
    assert selector(1) == ("second", (1,), {})


def test_a_winner_may_remove_itself(kind: type[PythonHotPath]) -> None:
    selector = make_selector(kind)

    def leaves(*args: Any) -> str:
        selector._settled = {}
        selector.get_problem_size = lambda *args: "other"
        gc.collect()
        return "left"

    selector._settled = {1: make_winner(kind, leaves)}
    del leaves
    assert selector(1) == "left"
    assert selector(1) == "long way"
    assert selector.told == [("other", 0, (1,), {})]


def test_threads_share_a_selector_whose_winners_change(kind: type[PythonHotPath]) -> None:
    selector = make_selector(kind)
    calls, failures = 3000, []

    def work() -> None:
        try:
            for number in range(calls):
                selector._settled = {1: make_winner(kind, lambda value, number=number: number)}
                assert isinstance(selector(1), int)
        except BaseException as error:
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failures == []
    assert selector.told == []


@pytest.mark.parametrize("stages", [0, 2])
def test_a_trial_of_another_thread_may_end_during_a_call(
    stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without the GIL, where nothing holds the other thread back."""

    class Ending(list[object]):
        def __bool__(self) -> bool:
            found = len(self) > 0
            self.clear()
            return found

    selector = make_selector(PythonHotPath, stages=stages, _first=(first_argument,) * 2)
    monkeypatch.setattr(hot_path, "detours", Ending([object()]))
    call = (0, 1) if stages else (1,)
    assert selector(*call) == ("winner", (1,), {})


def test_threads_count_every_call(kind: type[PythonHotPath]) -> None:
    selector = make_selector(kind)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: [selector(1) for _ in range(3000)]) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert selector._settled[1].calls == 8 * 3000


def test_calls_may_nest_and_recurse(kind: type[PythonHotPath]) -> None:
    selector = make_selector(kind, get_problem_size=lambda n: 1)
    selector._settled = {1: make_winner(kind, lambda n: n if n == 0 else 1 + selector(n - 1))}
    assert selector(50) == 50
    selector._settled = {1: make_winner(kind, lambda n: [selector(n)])}
    with pytest.raises(RecursionError):
        selector(1)
    selector._settled = {1: make_winner(kind, selector)}
    with pytest.raises(RecursionError):
        selector(1)
    selector.get_problem_size = selector
    with pytest.raises(RecursionError):
        selector(1)


def test_attributes_read_back(kind: type[PythonHotPath]) -> None:
    selector = make_selector(kind)
    winner = make_winner(kind, abs, len, sample_at=9)
    assert (winner.functions, winner.calls, winner.sample_at) == ((abs, len), 0, 9)
    settled = {3: winner}
    selector._settled, selector.get_problem_size, selector._stage_count = settled, abs, 2
    assert selector._settled is settled
    assert selector.get_problem_size is abs
    assert selector._stage_count == 2
    del selector.get_problem_size
    with pytest.raises(AttributeError, match="get_problem_size"):
        selector(0, 1)


def test_copies_and_pickles_answer_alike(kind: type[PythonHotPath]) -> None:
    importable = Importable if kind is PythonHotPath else NativeImportable
    selector = importable()
    selector.name = "copied"
    selector.get_problem_size, selector._settled = (
        first_argument,
        {1: make_winner(kind, answers_itself)},
    )
    for again in (
        copy.copy(selector),
        copy.deepcopy(selector),
        pickle.loads(pickle.dumps(selector)),
    ):
        assert type(again) is importable
        assert again(1, 2) == ("winner", (1, 2), {})
        assert again.name == "copied"
    assert copy.copy(selector)._settled is selector._settled


@pytest.mark.parametrize("through", ["_settled", "get_problem_size", "attribute", "nothing"])
def test_a_dropped_selector_is_freed(kind: type[PythonHotPath], through: str) -> None:
    selector = make_selector(kind)
    selector(1)
    if through == "_settled":
        selector._settled = {1: make_winner(kind, selector)}
    elif through == "get_problem_size":
        selector.get_problem_size = lambda *args, me=selector: 1
    elif through == "attribute":
        selector.me = selector
    reference = weakref.ref(selector)
    kept = weakref.ref(type(selector))
    gc.disable()
    try:
        del selector
        assert (reference() is None) == (through == "nothing")
    finally:
        gc.enable()
    gc.collect()
    assert reference() is None
    assert kept() is None


@pytest.mark.parametrize("grouped", [pytest.param(False, marks=pytest.mark.long), True])
def test_calls_leak_nothing(kind: type[PythonHotPath], grouped: bool) -> None:
    def winner(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            raise ValueError
        return args

    problem, unsettled, keyword = object(), object(), object()
    selector = make_selector(
        kind, stages=2 * grouped, _settled={problem: make_winner(kind, *[winner] * (1 + grouped))}
    )
    stage = (0,) if grouped else ()
    mistakes: list[tuple[Any, ...]] = [(problem, 1), ([],)]

    def calls(times: int) -> None:
        for _ in range(times):
            selector(*stage, problem)
            selector(*stage, problem, k=keyword)
            selector(*stage, unsettled, k=keyword)
            selector._settled[problem].sample_at = 0
            selector(*stage, problem, k=keyword)
            selector.told.clear()
            selector.samples.clear()
            for wrong in mistakes:
                with suppress(ValueError, ProblemError):
                    selector(*stage, *wrong, k=keyword)
            type(selector).__call__(selector, *stage, problem, k=keyword)

    watched = (
        problem,
        unsettled,
        keyword,
        winner,
        selector,
        selector._settled,
        selector._settled[problem],
        first_argument,
    )
    calls(10)
    gc.collect()
    counts = [sys.getrefcount(one) for one in watched]
    objects = len(gc.get_objects())
    tracemalloc.start()
    try:
        calls(200)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        calls(5000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert [sys.getrefcount(one) for one in watched] == counts
    assert len(gc.get_objects()) - objects < 100
    # Less than one pointer a call: of so many that 5 KB of the interpreter's own do not look like a
    # leak.
    assert grown < 5000 * 8


def printed(program: str, pure_python: str) -> str:
    """Return what a program prints with this value of BESTOF_PURE_PYTHON."""
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "BESTOF_PURE_PYTHON": pure_python},
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    return answer.stdout


@pytest.mark.parametrize(("value", "name"), [("1", "PythonHotPath"), ("", "NativeHotPath")])
def test_an_environment_variable_chooses(value: str, name: str) -> None:
    if NativeHotPath is None:
        pytest.skip("the native extension was not built")
    program = "from bestof.selection.hot_path import HotPath; print(HotPath.__name__)"
    assert printed(program, value).strip() == name


@pytest.mark.parametrize(("has_gil", "name"), [(True, "NativeHotPath"), (False, "PythonHotPath")])
def test_a_python_without_gil_keeps_it_off(has_gil: bool, name: str) -> None:
    """Such a Python switches the GIL on to import a module that does not say it needs none."""
    if NativeHotPath is None:
        pytest.skip("the native extension was not built")
    program = f"""
import sys
sys._is_gil_enabled = lambda: {has_gil}
import bestof
from bestof.selection.hot_path import HotPath
print(HotPath.__name__, "bestof.selection._hot_path" in sys.modules)
"""
    assert printed(program, "").split() == [name, str(has_gil)]


@pytest.mark.parametrize(("has_gil", "name"), [(True, "PythonWinner"), (False, "WinnerWithoutGil")])
def test_a_python_without_gil_counts_passes_under_a_lock(has_gil: bool, name: str) -> None:
    program = f"""
import sys
sys._is_gil_enabled = lambda: {has_gil}
from bestof.selection.hot_path import Winner
print(Winner.__name__)
"""
    assert printed(program, "1").strip() == name
