"""The timed call of a trial, natively and in Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from bestof.selection.hot_path import native_timed
from bestof.selection.trials.trial import Trial, current_trial, detours, timed_in_python

TIMED = {"python": timed_in_python, "native": native_timed}


@pytest.fixture(params=sorted(TIMED))
def timed(request: pytest.FixtureRequest) -> Any:
    found = TIMED[request.param]
    if found is None:
        pytest.skip("the native extension was not built")
    return found


def _ticks(*times: float) -> Callable[[], float]:
    return iter(times).__next__


def test_a_timed_call_gives_its_seconds_and_result(timed: Any) -> None:
    trial, inside = Trial(None, 1, 0, None), []

    def called(*args: Any, **kwargs: Any) -> Any:
        inside.append((current_trial.get(), list(detours), trial.done))
        return args, kwargs

    assert timed(detours, current_trial, trial, _ticks(1.0, 3.5), called, (1, 2), {"k": 3}) == (
        2.5,
        ((1, 2), {"k": 3}),
    )
    assert timed(detours, current_trial, trial, _ticks(1, 3), called, (), {}) == (2, ((), {}))
    assert inside[0] == (trial, [trial], False)
    assert (trial.done, current_trial.get(), detours) == (True, None, [])


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("fails", ["function", "clock at the start", "clock at the end"])
def test_a_timed_call_that_fails_leaves_nothing_open(
    timed: Any, error: BaseException, fails: str
) -> None:
    trial, calls = Trial(None, 1, 0, None), []

    def step(name: str) -> float:
        calls.append(name)
        if fails == name:
            raise error
        return 1.0

    clock = iter(("clock at the start", "clock at the end"))
    with pytest.raises(type(error)) as caught:
        timed(
            detours,
            current_trial,
            trial,
            lambda: step(next(clock)),
            lambda: step("function"),
            (),
            {},
        )
    assert caught.value is error
    assert calls[-1] == fails
    assert (trial.done, current_trial.get(), detours) == (True, None, [])


def test_a_timed_call_inside_another_leaves_the_outer_one(timed: Any) -> None:
    outer, inner = Trial(None, 1, 0, None), Trial(None, 2, 0, None)
    seen = []

    def inside() -> None:
        timed(detours, current_trial, inner, _ticks(1.0, 2.0), seen.append, (1,), {})
        seen.append((current_trial.get(), list(detours), inner.done, outer.done))

    timed(detours, current_trial, outer, _ticks(1.0, 2.0), inside, (), {})
    assert seen == [1, (outer, [outer], True, False)]


def test_a_timed_call_that_ends_elsewhere_or_was_dropped_is_harmless(timed: Any) -> None:
    trial, other = Trial(None, 1, 0, None), object()

    def called() -> None:
        detours[:] = [other]  # as a child process does, and another trial has begun since

    assert timed(detours, current_trial, trial, _ticks(1.0, 2.0), called, (), {}) == (1.0, None)
    assert detours == [other]
    detours.clear()


def test_a_timed_call_leaks_nothing(timed: Any) -> None:
    trial, answer = Trial(None, 1, 0, None), object()
    before = [sys.getrefcount(one) for one in (trial, answer, detours, current_trial)]
    for _ in range(1000):
        timed(detours, current_trial, trial, _ticks(1.0, 2.0), lambda: answer, (), {})
        with pytest.raises(ZeroDivisionError):
            timed(detours, current_trial, trial, _ticks(1.0, 2.0), lambda: 1 / 0, (), {})
    assert [sys.getrefcount(one) for one in (trial, answer, detours, current_trial)] == before


def test_the_native_timed_call_refuses_other_arguments() -> None:
    if native_timed is None:
        pytest.skip("the native extension was not built")
    for wrong in (
        (),
        (detours, current_trial, None, int, int, [], {}),
        ((), current_trial, None, int, int, (), {}),
    ):
        with pytest.raises(TypeError, match="timed: expected"):
            native_timed(*wrong)
    with pytest.raises(TypeError):
        native_timed(detours, None, None, int, int, (), {})
