"""The passes of a group on the hot path, natively and in Python."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from settled_selector import answers_itself, make_selector, second_stage

from bestof.selection import passes
from bestof.selection.hot_path import NativeWinner, PythonHotPath
from bestof.selection.passes import PASSES_KEPT, THREADS_KEPT, OpenPasses, WinnerWithoutGil


def _group(kind: type[PythonHotPath], *, stages: int = 2) -> tuple[Any, Any]:
    selector = make_selector(kind, stages=stages)
    return selector, selector._settled[1]


def _elsewhere(function: Callable[..., Any], *args: Any) -> Any:
    """What a call gives in another thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function(*args)))
    thread.start()
    thread.join()
    return found[0]


def test_open_passes_of_a_winner_are_known(kind: type[PythonHotPath]) -> None:
    selector, winner = _group(kind, stages=3)
    assert not winner.is_open(False)
    selector(0, 1)
    assert (winner.is_open(True), winner.is_open(False)) == (True, True)
    assert _elsewhere(winner.is_open, True) is False
    selector(2, 1)
    assert winner.is_open(True)
    selector(1, 1)
    assert not winner.is_open(False)
    assert selector.told == []


def test_a_pass_is_taken_once_by_its_thread_or_by_another(kind: type[PythonHotPath]) -> None:
    _, winner = _group(kind)
    assert [winner.begin() for _ in range(3)] == [True] * 3
    assert _elsewhere(winner.take, 1) is False
    assert _elsewhere(winner.take_anyones, 1) is True
    assert winner.take(1) is True
    assert winner.take(1) is True
    assert winner.take(1) is False  # three were begun, and one was finished elsewhere
    assert winner.take_anyones(1) is False
    assert not winner.is_open(True)


def test_a_later_stage_that_may_be_of_an_earlier_pass_takes_the_long_way(
    kind: type[PythonHotPath],
) -> None:
    selector, winner = _group(kind)
    selector(0, 1)
    winner.earlier = earlier = OpenPasses()
    assert winner.earlier is earlier
    assert selector(1, 1)[0] == "second"  # the pass that was begun last comes first
    assert selector(1, 1) == "long way"
    assert winner.calls == 2
    selector(0, 1)
    assert _elsewhere(selector, 1, 1) == "long way"
    winner.pass_over_earlier()
    _elsewhere(winner.take_anyones, 1)
    assert selector(1, 1) == "long way"  # nothing is open: whose pass could it be?
    _elsewhere(winner.begin)
    assert selector(1, 1)[0] == "second"  # one of another thread, and none of its own
    winner.earlier = None
    assert selector(1, 1)[0] == "second"


def test_a_thread_that_has_begun_many_passes_is_to_forget_its_earlier_ones(
    kind: type[PythonHotPath],
) -> None:
    selector, winner = _group(kind)
    winner.earlier = OpenPasses()
    for _ in range(PASSES_KEPT):
        assert selector(0, 1)[0] == "winner"
    assert [selector(0, 1), selector(0, 1)] == ["long way"] * 2
    assert _elsewhere(selector, 0, 1)[0] == "winner"
    winner.pass_over_earlier()
    assert selector(0, 1)[0] == "winner"
    finished = 0
    while winner.take(1):
        finished += 1
    assert finished == PASSES_KEPT  # so many are counted as open, and no more


def test_passes_of_ever_new_threads_stay_bounded(kind: type[PythonHotPath]) -> None:
    _, winner = _group(kind)
    count, ready, done = THREADS_KEPT + 50, threading.Barrier(THREADS_KEPT + 51), threading.Event()

    def work() -> None:
        winner.begin()
        ready.wait()
        done.wait()

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    assert winner.is_open(True) is False
    done.set()
    for thread in threads:
        thread.join()
    assert [winner.take_anyones(1) for _ in range(count + 1)] == [True] * count + [False]


def test_a_winner_with_earlier_passes_is_freed_in_a_circle(kind: type[PythonHotPath]) -> None:
    _, winner = _group(kind)

    class Circle(OpenPasses):
        """Can be told from outside whether it lives."""

    circle = Circle()
    circle.winner = winner  # type: ignore[attr-defined]
    winner.earlier = circle
    alive = weakref.ref(circle)
    del winner, circle, _
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("stage", [0, 2, -1])
def test_a_stage_that_no_pass_can_lack_is_refused(stage: int) -> None:
    if NativeWinner is None:
        pytest.skip("the native extension was not built")
    winner = NativeWinner((answers_itself, second_stage))
    for ask in (winner.answers, winner.take, winner.take_anyones):
        with pytest.raises(IndexError, match="expected a stage after the first"):
            ask(stage)


def test_a_problem_that_is_opened_between_look_up_and_call_loses_no_pass() -> None:
    """In plain Python another thread may come in between; natively nothing runs there."""
    selector, winner = _group(PythonHotPath)

    class Opened(dict[Any, Any]):
        """Another thread takes the winner away as soon as it was looked up."""

        def get(self, key: Any, default: Any = None) -> Any:
            return self.pop(key, default)

    selector._settled = Opened(selector._settled)
    assert selector(0, 1) == "long way"
    assert not winner.is_open(False)


class Switching(list[int]):
    """Counts that another thread may read, too, before one that has read them writes."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__(counts)
        self.other = threading.Event()

    def __getitem__(self, place: Any) -> Any:
        count = super().__getitem__(place)
        self.other.wait(0.02)
        return count


def _by_two(function: Callable[[], object]) -> None:
    threads = [threading.Thread(target=function) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_without_the_gil_no_count_is_lost() -> None:
    winner = WinnerWithoutGil((answers_itself, second_stage))
    winner._awaited = Switching([0, 0])
    _by_two(winner.begin)
    assert list(winner._awaited) == [0, 2]
    _by_two(lambda: winner.take_anyones(1))
    assert list(winner._awaited) == [0, 0]
    _by_two(lambda: winner.begin() and winner.take(1))
    assert list(winner._awaited) == [0, 0]
    assert not winner.is_open(False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_child_counts_although_another_thread_was_counting_at_the_fork() -> None:
    winner = WinnerWithoutGil((answers_itself, second_stage))
    winner._awaited = slow = Switching([0, 0])
    thread = threading.Thread(target=winner.begin)
    slow.other.wait = lambda _: threading.Event().wait(0.5)  # type: ignore[method-assign]
    thread.start()
    while passes._Counting.lock.acquire(blocking=False):
        passes._Counting.lock.release()
    child = os.fork()
    if child == 0:
        signal.alarm(250)  # ends a child that is blocked
        winner._awaited = [0, 0]
        os._exit(0 if winner.begin() and winner._awaited == [0, 1] else 1)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
