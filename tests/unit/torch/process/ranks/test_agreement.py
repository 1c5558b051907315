"""How problems are named on all ranks, and how the thread of a rank ends."""

from __future__ import annotations

import os
from threading import Thread
from time import sleep
from typing import ClassVar

import pytest
from simulated_job import PROBLEM, Job

from bestof.selection.policies import Race
from bestof.torch.process.ranks.agreement import Agreement
from bestof.torch.process.ranks.courier import BUSY, IDLE, REST, Courier
from bestof.torch.process.ranks.entry import DECIDE, TRY, Entry, parse_place


class Selector:
    name = "toy"

    def race_again(self, problem: object) -> None:
        raise AssertionError("nothing was reopened")


class Empty:
    """A store in which nobody publishes anything."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return desired.encode()

    def check(self, keys: list[str]) -> bool:
        return False

    def get(self, key: str) -> bytes:
        raise AssertionError(f"{key} was never set")


def test_the_garbage_collector_of_a_rank_does_not_change_the_names_of_problems() -> None:
    """One rank still holds the first selector when the second one comes, the other does not."""
    keeping, forgetting = Agreement(), Agreement()
    first = Selector()
    keeping._key(first, "5")
    forgetting._key(Selector(), "5")
    second = Selector()
    assert keeping._key(second, "5") == forgetting._key(second, "5") == "toy/1/5"
    assert keeping._key(first, "5") == "toy/0/5"
    assert keeping._key(second, "6") == "toy/0/6"


def test_the_thread_has_ended_before_the_interpreter_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bestof.torch.process.ranks.courier.END_SECONDS", 250.0)
    courier = Courier(Empty(), lambda: 0, lambda key: None)
    courier.log("toy/0/5")
    courier.start()
    thread = courier._thread
    assert thread is not None
    assert thread.is_alive()
    courier._end()
    assert not thread.is_alive()
    assert courier.log("toy/0/6").broken


def test_a_store_that_fails_lets_the_rank_decide_alone() -> None:
    class Gone(Empty):
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("the server is gone")

    courier = Courier(Gone(), lambda: 0, lambda key: None)
    log = courier.log("toy/0/5")
    assert not log.broken
    courier.start()
    thread = courier._thread
    assert thread is not None
    thread.join(250)
    assert log.broken


def test_where_no_thread_can_start_the_rank_decides_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refused)
    agreement = Agreement(lambda: ("group", Empty))
    search = agreement.policy(Selector(), 5, Race()).start(["a", "b"])
    assert search.ask() == 0
    assert isinstance(agreement.policy(Selector(), 6, Race()), Race)


def test_a_place_of_the_log_that_is_none_ends_the_agreement() -> None:
    class Foreign(Empty):
        def check(self, keys: list[str]) -> bool:
            return True

        def get(self, key: str) -> bytes:
            return b"written by another program"

    with pytest.raises(ValueError, match="expected a place of the log"):
        Courier(Foreign(), lambda: 0, lambda key: None).look()


def test_looks_become_rare_while_no_call_follows_the_log() -> None:
    courier = Courier(Empty(), lambda: 0, lambda key: None)
    pauses = [courier._pause() for _ in range(300)]
    assert pauses[0] == BUSY
    assert pauses[-1] == REST
    courier.log("toy/0/5").count_call(0)
    assert courier._pause() == BUSY


def test_the_first_call_of_a_step_has_the_thread_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("bestof.torch.process.ranks.courier.monotonic", lambda: now[0])
    courier = Courier(Empty(), lambda: 1, lambda key: None)
    log = courier.log("toy/0/5")
    now[0] += BUSY
    log.count_call(1)
    assert not courier._wake.is_set(), "the step in which the thread has begun"
    log.count_call(2)
    assert courier._wake.is_set()
    assert courier._pause() == IDLE, "the next step is awaited"
    assert courier._pause() < IDLE, "no step came"


def test_the_log_is_left_when_the_group_is_destroyed() -> None:
    class Counted(Empty):
        looks = 0

        def check(self, keys: list[str]) -> bool:
            self.looks += 1
            return False

    store, lasts = Counted(), [True]
    courier = Courier(store, lambda: 0, lambda key: None, lambda: lasts[0])
    courier.start()
    assert courier._thread is not None
    while not store.looks:
        sleep(0.001)
    lasts[0] = False
    courier._wake.set()
    courier._thread.join(60)
    assert not courier._thread.is_alive()
    assert courier.broken


def test_a_step_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("bestof.torch.process.ranks.courier.monotonic", lambda: now[0])
    courier = Courier(Empty(), lambda: 1, lambda key: None)
    log = courier.log("toy/0/5")
    now[0] += BUSY
    log.count_call(2)
    courier._wake.clear()
    now[0] += BUSY
    log.count_call(2)
    assert not courier._wake.is_set(), "the step has been looked at"
    log.count_call(3)
    assert courier._wake.is_set()


def test_short_steps_make_no_more_looks_than_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("bestof.torch.process.ranks.courier.monotonic", lambda: now[0])
    courier = Courier(Empty(), lambda: 1, lambda key: None)
    for step in range(2, 100):
        courier.count_call(step)
    assert not courier._wake.is_set()


def test_the_offers_of_a_step_are_written_in_one_place_of_the_log() -> None:
    class Kept(Empty):
        texts: ClassVar[list[str]] = []

        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            self.texts.append(desired)
            return desired.encode()

    courier = Courier(Kept(), lambda: 3, lambda key: None)
    for problem in range(20):
        courier.log(f"toy/0/{problem}").offer(0, Entry(TRY, 3, 5, 2, ("a",), "a"))
    assert not courier._wake.is_set(), "the thread waits for the next step"
    courier.look()
    (text,) = Kept.texts
    assert len(parse_place(text)) == 20


def test_entries_hold_twice_as_many_steps_ahead_as_offers_took_to_be_read() -> None:
    step = 0
    courier = Courier(Empty(), lambda: step, lambda key: None)
    log = courier.log("toy/0/5")
    assert courier.ahead() == 0, "no step was counted"
    step = 2
    log.offer(0, Entry(TRY, step, step + 2, 2, ("a",), "a"))
    assert courier.ahead() == 2
    step = 8
    courier.look()
    assert courier.ahead() == 12
    for _ in range(40):
        courier.look()
    assert courier.ahead() == 2


def test_an_offer_whose_place_is_taken_is_dropped() -> None:
    courier = Courier(Empty(), lambda: 0, lambda key: None)
    log = courier.log("toy/0/5")
    log.offer(0, Entry(TRY, 0, 0, 2, ("a",), "a"))
    log.entries.append(Entry(DECIDE, 0, 0, 2, (), "b"))
    assert log.offered() is None
    courier.look()
    assert [entry.best for entry in log.entries] == ["b"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_decides_alone() -> None:
    store = Empty()
    agreement = Agreement(lambda: ("group", lambda: store), background=False)
    selector = Selector()
    agreement.policy(selector, 5, Race())
    assert agreement._courier is not None
    child = os.fork()
    if child == 0:
        alone = agreement._courier.broken and isinstance(
            agreement.policy(selector, 6, Race()), Race
        )
        os._exit(0 if alone else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not agreement._courier.broken


def test_the_report_tells_that_a_decision_waits_for_the_ranks() -> None:
    """Thousands of short calls may pass between two looks at the log."""
    job = Job(seed=3, count=2)
    job.overlap = 0.0
    rank = job.ranks[0]
    for _ in range(200):
        rank.call()
    why = rank.selector.explain(PROBLEM).why
    assert why is not None
    assert why.startswith("the ranks of the job decide together")
    job.finish()
    assert rank.decision is not None
    assert rank.selector.explain(PROBLEM).why is None
