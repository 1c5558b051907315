"""Exceptions that arrive from outside during a call pass through a selector, untouched."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import itertools
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from bestof import Alternative, BestOf
from bestof.selection.interrupts import comes_from_outside, registered_handlers
from bestof.selection.trials.trial import current_trial, detours

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no interval timers"
)


class TimeLimit(Exception):
    """What a program's handler raises."""


def handler(number: int, frame: FrameType | None) -> None:
    raise TimeLimit("late")


def leaving_handler(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    raise TimeLimit("late")


def forgetful_handler(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise TimeLimit("late")


def deep_handler(*given: Any) -> None:
    def fail() -> None:
        raise TimeLimit("late")

    fail()


class Watch:
    """A callable object, and one with a method, that handle signals."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise TimeLimit("late")

    def method(self, number: int, frame: FrameType | None) -> None:
        raise TimeLimit("late")


def with_more(more: object, number: int, frame: FrameType | None) -> None:
    raise TimeLimit("late")


HANDLERS = {
    "function": handler,
    "leaves": leaving_handler,
    "forgets": forgetful_handler,
    "deep": deep_handler,
    "object": Watch(),
    "method": Watch().method,
    "partial": functools.partial(with_more, 1),
    "cached": functools.lru_cache(deep_handler),
    "lambda": lambda *given: deep_handler(*given),
}


@contextlib.contextmanager
def alarm(chosen: Any = handler, seconds: float = 0.02) -> Iterator[None]:
    old = signal.signal(signal.SIGALRM, chosen)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, old)


def busy(seconds: float = 3.0) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        # On a busy machine, CPython may forget that a signal waits. This call looks for itself.
        signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return "busy"


def alarmed() -> str:
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    return busy()


def wrapping() -> str:
    try:
        return alarmed()
    except TimeLimit as error:
        raise ValueError("wrapped") from error


def in_passing() -> str:
    try:
        return alarmed()
    finally:
        raise KeyError("in passing")


def sleeping() -> str:
    time.sleep(3.0)
    return "slept"


def made(*functions: Callable[..., Any], **options: Any) -> BestOf:
    return BestOf(
        "outside",
        [(f"{position}", one) for position, one in enumerate(functions)],
        lambda *args, **kwargs: 0,
        store="off",
        **options,
    )


def takes(lock: Any) -> bool:
    """Return whether the lock could be taken."""
    if not lock.acquire(timeout=5):
        return False
    lock.release()
    return True


def is_as_it_was(selector: BestOf) -> None:
    """Nothing is held, nothing is disqualified, and no trial is open."""
    assert detours == []
    assert current_trial.get() is None
    with ThreadPoolExecutor(1) as other:  # a lock that is held would be taken again by this thread
        assert other.submit(takes, selector._knowledge.lock).result()
    assert all(row.reason is None for row in selector.explain().alternatives)


@pytest.mark.parametrize("chosen", HANDLERS.values(), ids=HANDLERS.keys())
@pytest.mark.parametrize("function", [busy, sleeping, time.sleep])
def test_what_a_signal_handler_raises_reaches_the_program(
    chosen: Any, function: Callable[..., Any]
) -> None:
    args = (3.0,) if function is time.sleep else ()
    selector = made(function, function)
    for _ in range(2):
        with pytest.raises(TimeLimit), alarm(chosen):
            selector(*args)
    is_as_it_was(selector)


@pytest.mark.parametrize(("function", "kind"), [(wrapping, ValueError), (in_passing, KeyError)])
def test_an_error_raised_from_it_passes_too(
    function: Callable[[], str], kind: type[Exception]
) -> None:
    selector = made(function, function)
    with pytest.raises(kind) as raised, alarm(seconds=0.0):
        selector()
    assert isinstance(raised.value.__context__, TimeLimit)
    is_as_it_was(selector)


@pytest.mark.parametrize(
    "options", [{"check": 0.0}, {"check": 0.0, "restore": lambda: lambda: None}, {}]
)
def test_in_every_part_of_a_call(options: dict[str, Any]) -> None:
    quick = ["fast"]

    def sometimes() -> str:
        return "busy" if quick else busy()

    selector = made(lambda: "busy", sometimes, policy="rounds:rounds=3", **options)
    selector()
    quick.clear()
    with pytest.raises(TimeLimit), alarm():
        [selector() for _ in range(5)]
    is_as_it_was(selector)
    quick.append("fast")
    assert [selector() for _ in range(30)] == ["busy"] * 30
    assert selector.best_method_has_been_found()


def test_in_the_reference_in_a_check_and_in_supports() -> None:
    quick = ["fast"]
    selector = made(lambda: 1 if quick else busy(), lambda: 1, check=0.0)
    selector()
    quick.clear()
    with pytest.raises(TimeLimit), alarm():
        selector()
    is_as_it_was(selector)
    selector = made(lambda: 1, lambda: 1, check=lambda expected, got: bool(busy()))
    selector()
    with pytest.raises(TimeLimit), alarm():
        selector()
    is_as_it_was(selector)
    selector = BestOf(
        "outside",
        [("a", str), Alternative("b", str, supports=lambda problem: bool(busy()))],
        lambda: 0,
        store="off",
    )
    with pytest.raises(TimeLimit), alarm():
        selector()
    is_as_it_was(selector)


def test_in_both_stages_of_a_group() -> None:
    slow = [False, False]

    def stage(number: int) -> Callable[[], Any]:
        return lambda: busy() if slow[number] else number

    selector = BestOf(
        "outside",
        [(name, [stage(0), stage(1)]) for name in "ab"],
        lambda: 0,
        store="off",
        policy="rounds:rounds=3",
    )
    for number in (0, 1):
        slow[number] = True
        with pytest.raises(TimeLimit), alarm():
            selector(0), selector(1)
        slow[number] = False
        is_as_it_was(selector)
    assert [(selector(0), selector(1)) for _ in range(20)] == [(0, 1)] * 20
    assert selector.best_method_has_been_found()


def test_in_a_coroutine() -> None:
    async def waits() -> str:
        await asyncio.sleep(0)
        return busy()

    selector = made(waits, waits)
    with pytest.raises(TimeLimit), alarm():
        asyncio.run(selector())
    is_as_it_was(selector)


def test_a_coroutine_that_is_cancelled_or_closed() -> None:
    async def waits() -> None:
        await asyncio.sleep(3)

    selector = made(waits, waits)

    async def cancel() -> None:
        task = asyncio.ensure_future(selector())
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
    coroutine = selector()
    with contextlib.suppress(RuntimeError):  # no running loop to sleep in
        coroutine.send(None)
    coroutine.close()
    assert detours == []
    assert all(row.reason is None or "no running" in row.reason for row in
               selector.explain().alternatives)  # fmt: skip


def limited(function: Callable[[], Any]) -> Callable[[], Any]:
    """A time limit that the alternative sets for itself, and takes back."""

    def run() -> Any:
        with alarm(lambda number, frame: deep_handler()):
            return function()

    return run


def test_a_time_limit_of_the_alternative_itself_is_its_own() -> None:
    selector = made(limited(busy), lambda: "quick")
    with pytest.warns(match="'0' was disqualified: raised TimeLimit"):
        assert selector() == "quick"


def test_a_time_limit_around_a_selector_inside_an_alternative() -> None:
    """It passes the inner selector, to which it is foreign, and disqualifies in the outer one."""
    inner = made(busy, busy)
    outer = made(limited(inner), lambda: "quick")
    with pytest.warns(match="'0' was disqualified: raised TimeLimit") as told:
        assert outer() == "quick"
    assert len(told) == 1
    is_as_it_was(inner)


def test_its_own_error_while_the_program_handles_one_from_outside() -> None:
    def broken() -> None:
        raise OSError("own")

    selector = made(broken, lambda: "quick")
    with alarm(seconds=0.0):
        try:
            alarmed()
        except TimeLimit:
            with pytest.warns(match="'0' was disqualified: raised OSError"):
                assert selector() == "quick"


class Stop(Exception):
    """What another thread sets."""


class StopWithWords(Exception):
    """The same, with words."""

    def __init__(self, words: str = "stopped") -> None:
        super().__init__(words)


def counting() -> None:
    number = 0
    while number < 1 << 60:
        number += 1


def looping() -> None:
    for _ in range(1 << 60):
        pass


def calling() -> None:
    def nothing() -> int:
        return 1

    while nothing():
        pass


def adding() -> None:
    while True:
        sum((1, 2))


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        # where code may run out of memory itself, that error cannot be told apart
        (looping, MemoryError),
        *itertools.product(
            (counting, looping, calling, adding), (Stop, StopWithWords, TimeoutError)
        ),
    ],
)
def test_what_another_thread_sets(function: Callable[[], None], kind: type[Exception]) -> None:
    selector, me = made(function, function), threading.get_ident()

    def stop() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(me), ctypes.py_object(kind))

    timer = threading.Timer(0.05, stop)
    timer.start()
    with pytest.raises(kind):
        selector()
    timer.join()
    is_as_it_was(selector)


def test_what_a_trace_function_raises() -> None:
    def work() -> int:
        total = 0
        for number in range(10):
            total += number
        return total

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code is work.__code__ and event == "line":
            raise TimeLimit("traced")
        return trace

    selector, before = made(work, work), sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(TimeLimit):
            selector()
    finally:
        sys.settrace(before)
    is_as_it_was(selector)


@pytest.mark.parametrize(
    "text", ["int('x')", "[][1]", "{}[1]", "next(iter([]))", "1 / 0", "len(3)", "open('/n/o')"]
)
def test_errors_of_compiled_code_are_its_own(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert made(lambda: eval(text), lambda: "other")() == "other"


def test_a_function_that_gets_its_callers_frame_is_no_handler() -> None:
    def broken(number: int, frame: FrameType) -> None:
        raise OSError("own")

    with pytest.raises(OSError, match="own") as raised:
        broken(14, sys._getframe())
    assert not comes_from_outside(raised.value, registered_handlers())
