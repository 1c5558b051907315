"""Selectors whose alternatives are added and removed while the program runs."""

from __future__ import annotations

import copy
import threading
import time

import pytest
from fake_program import Program

from bestof import Alternative, BestOf
from bestof.errors import InvalidArgument
from bestof.selection.store.memory import MemoryStore

CALLS = 40


def settled(program: Program, **options: object) -> BestOf:
    alternatives = [("a", program.function("a", 3.0)), ("b", program.function("b", 2.0))]
    selector = program.selector(alternatives, **options)
    for _ in range(CALLS):
        selector(1)
    assert selector.chosen((1,)) == "b"
    return selector


def trials_of(selector: BestOf) -> dict[str, int]:
    return {one.name: one.trials for one in selector.explain(1).alternatives}


def test_an_added_one_is_tried_and_evidence_stays(program: Program) -> None:
    selector = settled(program)
    before, trials = trials_of(selector), selector.trials
    selector.add(("c", program.function("c", 1.0)))
    assert selector.alternative_names == ("a", "b", "c")
    program.calls.clear()
    for _ in range(CALLS):
        assert selector(1) is not None
    assert selector.chosen((1,)) == "c"
    assert set(program.taken()[: selector.trials - trials]) == {"c"}
    after = trials_of(selector)
    assert (after["a"], after["b"]) == (before["a"], before["b"])


def test_a_slower_one_changes_nothing(program: Program) -> None:
    selector = settled(program)
    selector.add(Alternative("c", program.function("c", 9.0)))
    for _ in range(CALLS):
        selector(1)
    assert selector.chosen((1,)) == "b"


def test_a_removed_one_gives_way_to_the_best_of_the_others(program: Program) -> None:
    selector = settled(program)
    selector.add(("c", program.function("c", 1.0)))
    for _ in range(CALLS):
        selector(1)
    trials = selector.trials
    selector.remove("c")
    selector(1)
    assert (selector.chosen((1,)), selector.trials) == ("b", trials)
    assert selector.alternative_names == ("a", "b")


def test_removing_a_loser_keeps_the_decision(program: Program) -> None:
    selector = settled(program)
    selector.add(("c", program.function("c", 1.0)))
    for _ in range(CALLS):
        selector(1)
    trials = selector.trials
    selector.remove("b")
    selector(1)
    assert (selector.chosen((1,)), selector.trials) == ("c", trials)


@pytest.mark.parametrize("store", [None, MemoryStore()])
def test_one_that_comes_back_has_its_evidence(program: Program, store: MemoryStore | None) -> None:
    c = ("c", program.function("c", 1.0))
    selector = settled(program, store=store)
    b = selector.alternatives[1]
    selector.add(c)
    for _ in range(CALLS):
        selector(1)
    trials = selector.trials
    selector.remove("c")
    selector(1)
    selector.add(c)
    selector(1)
    assert (selector.chosen((1,)), selector.trials) == ("c", trials)
    selector.remove("c")
    selector.remove("b")
    selector(1)
    assert selector.chosen((1,)) == "a"
    selector.add(c)
    selector.add(b)
    selector(1)
    assert (selector.chosen((1,)), selector.trials) == ("c", trials)


def test_figures_and_the_store_go_on(program: Program) -> None:
    store = MemoryStore()
    selector = settled(program, store=store)
    figures = selector.trials, selector.settled_calls, selector.saved_seconds
    selector.add(("c", program.function("c", 1.0)))
    assert (selector.trials, selector.settled_calls, selector.saved_seconds) == figures
    for _ in range(CALLS):
        selector(1)
    (record,) = store.records("it")
    assert record.decision == "c"
    assert copy.copy(selector).chosen((1,)) == "c"


def test_an_unfinished_search_goes_on(program: Program) -> None:
    alternatives = [("a", program.function("a", 3.0)), ("b", program.function("b", 2.0))]
    selector = program.selector(alternatives)
    selector(1)
    selector(1)
    selector.add(("c", program.function("c", 1.0)))
    selector(1)
    assert selector.trials == 3
    assert trials_of(selector) == {"a": 1, "b": 1, "c": 1}


def test_what_cannot_be_changed_is_refused(program: Program) -> None:
    selector = settled(program)
    for name, told in (
        ("a", "expected one of 'b'; got 'a': the first one is the reference, and stays"),
        ("z", "expected one of 'b'; got 'z': there is none"),
    ):
        with pytest.raises(InvalidArgument, match=told):
            selector.remove(name)
    with pytest.raises(InvalidArgument, match="names must differ; 'b' appears twice"):
        selector.add(("b", len))
    group = BestOf("group", [("a", [len, len]), ("b", [len, len])], lambda *_: 0)
    with pytest.raises(InvalidArgument, match="its alternatives are groups"):
        group.add(("c", [len, len]))
    with pytest.raises(InvalidArgument, match="its alternatives are groups"):
        group.remove("b")
    assert (selector.chosen((1,)), selector.alternative_names) == ("b", ("a", "b"))


def test_an_ordered_one_is_not_removed(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    selector = settled(program)
    monkeypatch.setenv("BESTOF_FORCE", "it=b")
    with pytest.raises(InvalidArgument, match="BESTOF_FORCE: expected one of a, got 'b'"):
        selector.remove("b")
    assert (selector.chosen((1,)), selector.alternative_names) == ("b", ("a", "b"))
    assert selector.explain(1).decision == "b"


def test_threads_that_add_at_once_lose_nothing() -> None:
    selector = BestOf("t", [("a", abs), ("b", abs)], abs)
    names = [f"c{number}" for number in range(8)]
    threads = [threading.Thread(target=selector.add, args=((name, abs),)) for name in names]
    with selector._knowledge.lock:
        for thread in threads:
            thread.start()
        time.sleep(0.2)  # so that they all wait for the lock
    for thread in threads:
        thread.join()
    assert sorted(selector.alternative_names) == ["a", "b", *names]
    assert selector.versions == selector._knowledge.versions


def test_threads_call_meanwhile() -> None:
    selector = BestOf("t", [("a", lambda n: n + 1), ("b", lambda n: 1 + n)], lambda n: n % 4)
    wrong: list[object] = []
    done = threading.Event()

    def call() -> None:
        n = 0
        while not done.is_set():
            n += 1
            try:
                if selector(n) != n + 1:
                    wrong.append(n)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        selector.add(("c", lambda n: n - -1))
        selector.remove("c")
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
