"""Errors of settled calls, natively and in Python."""

from __future__ import annotations

from typing import Any

import pytest
from settled_selector import make_selector, make_winner

from bestof.errors import ProblemError
from bestof.selection.hot_path import NativeHotPath, NativeWinner, PythonHotPath


@pytest.mark.parametrize(
    "error",
    [TypeError("own"), KeyError(1), AttributeError("x"), KeyboardInterrupt(), StopIteration()],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_a_winner_that_raises_is_called_once(
    kind: type[PythonHotPath], error: BaseException, grouped: bool
) -> None:
    calls = []

    def fails(*args: Any) -> None:
        calls.append(args)
        raise error

    selector = make_selector(kind, stages=2 * grouped, _settled={1: make_winner(kind, fails)})
    with pytest.raises(type(error)) as caught:
        selector(*([0] if grouped else []), 1)
    assert caught.value is error
    assert error.__cause__ is None
    assert calls == [(1,)]
    assert selector.told == []
    assert selector._settled[1].calls == 1


@pytest.mark.parametrize("grouped", [False, True])
def test_errors_of_the_problem_function_pass_unchanged(
    kind: type[PythonHotPath], grouped: bool
) -> None:
    error = TypeError("in the problem function")

    def fails(*args: Any) -> None:
        raise error

    selector = make_selector(kind, stages=2 * grouped, get_problem_size=fails)
    with pytest.raises(TypeError, match="in the problem function") as caught:
        selector(0, 1)
    assert caught.value is error
    assert selector.told == []


@pytest.mark.parametrize("grouped", [False, True])
def test_a_problem_that_is_not_hashable(kind: type[PythonHotPath], grouped: bool) -> None:
    selector = make_selector(kind, stages=2 * grouped, get_problem_size=lambda *args: [3])
    outer = RuntimeError("being handled by the caller")
    try:
        raise outer
    except RuntimeError:
        with pytest.raises(ProblemError, match=r"'contract'.*\[3\]") as caught:
            selector(0, 1)
    cause = caught.value.__cause__
    assert isinstance(cause, TypeError)
    assert caught.value.__context__ is cause
    assert caught.value.__suppress_context__
    assert cause.__context__ is outer
    assert selector.told == []


def test_other_errors_of_a_look_up_pass_unchanged(kind: type[PythonHotPath]) -> None:
    class Odd:
        def __hash__(self) -> int:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_selector(kind)(Odd())


def test_a_selector_that_was_never_filled_raises(kind: type[PythonHotPath]) -> None:
    with pytest.raises(AttributeError):
        kind()(1)


def test_the_native_type_refuses_wrong_types() -> None:
    if NativeHotPath is None:
        pytest.skip("the native extension was not built")
    selector = make_selector(NativeHotPath)
    with pytest.raises(TypeError, match="_settled: expected a dict"):
        selector._settled = []
    with pytest.raises(TypeError, match="detours: expected a list; got tuple"):
        type("Wrong", (NativeHotPath,), {"detours": ()})()
    selector._settled = {1: None}
    with pytest.raises(TypeError, match="expected a Winner for a problem; got NoneType"):
        selector(1)
    assert NativeWinner is not None
    with pytest.raises(TypeError, match="must be tuple, not list"):
        NativeWinner([abs])  # type: ignore[arg-type]  # what is refused
