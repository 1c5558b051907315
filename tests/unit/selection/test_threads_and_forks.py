"""Many threads, tasks and processes on one selector."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_program import DictStore, Program

from bestof import BestOf
from bestof.errors import BestofWarning
from bestof.selection.passes import NEVER, WHILE_SAMPLED
from bestof.selection.state import registry
from bestof.selection.store import default
from bestof.selection.trials.trial import detours


@pytest.fixture(autouse=True)
def switching_often() -> Any:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


def hammer(work: Callable[[int], None], threads: int = 8) -> None:
    """Run `work(number)` in so many threads, begun together; the first error of any is raised
    here."""
    gate, errors = threading.Barrier(threads), []

    def run(number: int) -> None:
        gate.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]


def test_eight_threads_settle_every_problem(program: Program) -> None:
    store = DictStore()
    selector = program.selector({"a": 2.0, "b": 1.0}, store=store, rounds=20)
    answers: list[Counter[str]] = [Counter() for _ in range(8)]

    def work(number: int) -> None:
        for call in range(400):
            answers[number][selector(call % 5)] += 1

    hammer(work)
    assert [sum(one.values()) for one in answers] == [400] * 8
    assert len(store.kept) == store.saves == 5
    assert selector._knowledge.tunings == {}
    assert len(selector._settled) == 5


def test_eight_threads_on_groups_get_whole_passes(program: Program) -> None:
    pairs = [(name, [lambda x, n=name: (n, 0), lambda x, n=name: (n, 1)]) for name in "abc"]
    selector = program.selector(pairs, rounds=20)

    def work(number: int) -> None:
        for _ in range(200):
            first, second = selector(0, 1), selector(1, 1)
            assert (first[1], second) == (0, (first[0], 1))

    hammer(work)
    assert selector.best_method_has_been_found(1)


def test_eight_threads_disqualify_once(program: Program) -> None:
    def fails(x: int) -> str:
        raise ValueError("no")

    selector = program.selector([("a", str), ("fails", fails), ("b", str)], rounds=20)
    with pytest.warns(BestofWarning) as caught:
        hammer(lambda number: [selector(1) for _ in range(100)] and None)
    assert len(caught) == 1
    reasons = [
        entry
        for entry in selector.journal.entries()
        if type(entry).__name__ == "DisqualificationEntry"
    ]
    assert len(reasons) == 1


def test_eight_threads_and_ever_new_problems_stay_bounded(program: Program) -> None:
    selector = program.selector({"a": 1.0, "b": 2.0}, max_problems=16)
    hammer(lambda number: [selector((number * call) % 97) for call in range(600)] and None)
    assert len(selector._knowledge.decisions) <= 32
    assert len(selector._settled) + len(selector._knowledge.older) <= 16
    assert len(selector._knowledge.tunings) <= 16


@pytest.mark.long
def test_reports_while_others_work(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of these selectors alone: 400 reports of all that other tests have left in the process take
    # minutes.
    monkeypatch.setattr(registry, "_selectors", weakref.WeakSet())

    def work(number: int) -> None:
        for call in range(100):
            if number % 2:
                BestOf(f"new {number} {call}", [("a", str)], lambda x: x)(call)
            else:
                selector(call)
                str(selector.report())
                BestOf.print_report()

    selector = program.selector({"a": 1.0, "b": 2.0})
    hammer(work)


def test_tasks_share_a_selector(program: Program) -> None:
    async def alternative(x: int) -> int:
        await asyncio.sleep(0)
        return x

    selector = program.selector([("a", alternative), ("b", alternative)], lambda x: None, rounds=10)

    async def task(number: int) -> list[int]:
        return [await selector(number) for _ in range(10)]

    async def main() -> list[list[int]]:
        return await asyncio.gather(*(task(number) for number in range(8)))

    assert asyncio.run(main()) == [[number] * 10 for number in range(8)]
    assert selector.explain(1).settled


def in_child(work: Callable[[], bool]) -> bool:
    """Whether `work` is true in a forked child; the child ends without a word to the test
    runner."""
    pid = os.fork()
    if pid == 0:
        try:
            status = 0 if work() else 1
        except BaseException:
            status = 2
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
deprecated = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


@needs_fork
@deprecated
def test_a_forked_child_keeps_decisions_and_goes_on_deciding(program: Program) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0})
    for _ in range(4):
        selector(1)
    selector(2)

    def child() -> bool:
        kept = selector(1) == "b" and selector.trials == 5
        return kept and [selector(2) for _ in range(4)] == ["b", "a", "b", "b"]

    assert in_child(child)
    assert [selector(2) for _ in range(4)] == ["b", "a", "b", "b"]


@needs_fork
@deprecated
def test_a_fork_while_another_thread_is_in_a_trial_and_holds_the_lock(program: Program) -> None:
    inside, leave = threading.Event(), threading.Event()

    def waits(x: int) -> str:
        inside.set()
        assert leave.wait(250)
        return "waits"

    selector = program.selector([("waits", waits), ("b", program.function("b", 1.0))])
    settled = program.selector({"x": 1.0}, name="settled")
    settled(1)
    thread = threading.Thread(target=selector, args=(1,))
    thread.start()
    assert inside.wait(250)
    holder = threading.Thread(
        target=lambda: (
            selector._knowledge.lock.acquire()
            and leave.wait(250)
            and selector._knowledge.lock.release()
        )
    )
    holder.start()
    try:
        assert in_child(
            lambda: detours == [] and settled(1) == "x" and selector.report().trials == 0
        )
    finally:
        leave.set()
        holder.join()
        thread.join()


@needs_fork
@deprecated
def test_a_fork_inside_a_trial_finishes_it(program: Program) -> None:
    results = []

    def forks(x: int) -> str:
        results.append(os.fork())
        return "forks"

    selector = program.selector([("forks", forks), ("b", str)])
    assert selector(1) == "forks"
    if results[0] == 0:
        os._exit(0 if detours == [] and selector.trials == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(results[0], 0)[1]) == 0


@needs_fork
@deprecated
def test_a_fork_while_another_thread_opens_the_default_store_blocks_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOF_STORE", str(tmp_path / "store.sqlite"))
    default.close_default_store()
    opens, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with default._lock:
            opens.set()
            forked.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    opens.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(250)  # ends a child that is blocked
        os._exit(0 if default.default_store() is not None else 1)
    forked.set()
    thread.join()
    status = os.waitpid(pid, 0)[1]
    default.close_default_store()
    assert os.waitstatus_to_exitcode(status) == 0


@needs_fork
@deprecated
def test_a_fork_lets_another_thread_finish_opening_the_default_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOF_STORE", str(tmp_path / "store.sqlite"))
    default.close_default_store()
    opens, usual = threading.Event(), default._open

    def slowly() -> Any:
        opens.set()
        threading.Event().wait(0.05)
        return usual()

    monkeypatch.setattr(default, "_open", slowly)
    thread = threading.Thread(target=default.default_store)
    thread.start()
    opens.wait()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if len(default._opened) == 1 else 1)
    thread.join()
    status = os.waitpid(pid, 0)[1]
    default.close_default_store()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_signal_handler_may_open_the_default_store_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOF_STORE", str(tmp_path / "store.sqlite"))
    default.close_default_store()
    opened, usual = [], default._open

    def interrupted() -> Any:
        monkeypatch.setattr(default, "_open", usual)
        opened.append(default.default_store())  # as a handler does that calls a selector
        return usual()

    monkeypatch.setattr(default, "_open", interrupted)
    thread = threading.Thread(target=lambda: opened.append(default.default_store()), daemon=True)
    thread.start()
    thread.join(250)
    assert len(opened) == 2, "blocked"
    assert opened[0] is opened[1] is default.default_store()
    default.close_default_store()


@needs_fork
@deprecated
def test_passes_open_at_a_fork_belong_to_the_parent(program: Program) -> None:
    pairs = [
        (name, [program.function(f"{name}0", 1.0), program.function(f"{name}1", 1.0)])
        for name in "ab"
    ]
    selector = program.selector(pairs)
    selector(0, 1)
    selector(1, 1)
    selector(0, 1)
    assert in_child(
        lambda: len(selector._knowledge.tunings[1,].passes) == 0 and selector(1, 1) == "a1"
    )
    assert selector(1, 1) == "b1"


@needs_fork
@deprecated
def test_a_problem_that_another_thread_samples_at_a_fork_is_watched_in_the_child(
    program: Program,
) -> None:
    inside, leave, main = threading.Event(), threading.Event(), threading.get_ident()

    def waits(x: int) -> str:
        if threading.get_ident() != main:
            inside.set()
            assert leave.wait(250)
        return "a"

    selector = program.selector([("a", waits), ("b", program.function("b", 1.0))])
    while selector.settled_calls < 15:
        selector(1)
    assert selector.explain(1).decision == "a"
    sampled = threading.Thread(target=selector, args=(1,))
    sampled.start()
    assert inside.wait(250)
    winner = selector._settled[1,]
    try:
        assert winner.sample_at == winner.calls + WHILE_SAMPLED
        assert in_child(lambda: selector._settled[1,].sample_at < NEVER)
    finally:
        leave.set()
        sampled.join()
