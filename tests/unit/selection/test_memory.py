"""What stays in memory, and for how long."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref

from fake_program import DictStore, Program

from bestof import BestOf
from bestof.selection import report_all
from bestof.selection.state import registry


def settle(selector: BestOf, problem: int, calls: int = 4) -> None:
    for _ in range(calls):
        selector(problem)


def held(selector: BestOf) -> int:
    return max(
        len(selector._knowledge.decisions),
        len(selector._settled) + len(selector._knowledge.older),
        len(selector._knowledge.tunings),
    )


def test_settled_problems_are_bounded(program: Program) -> None:
    selector = program.selector({"a": 1.0, "b": 2.0}, max_problems=8)
    for problem in range(100):
        settle(selector, problem)
        assert held(selector) <= 8
    assert len(selector.report().problems) == len(selector._settled) + len(
        selector._knowledge.older
    )


def test_unsettled_problems_are_bounded(program: Program) -> None:
    selector = program.selector({"a": 1.0, "b": 2.0}, max_problems=8)
    for problem in range(100):
        selector(problem)
        assert held(selector) <= 8


def test_problems_that_stay_on_the_long_way_are_bounded(program: Program) -> None:
    pairs = [("a", program.function("a", 2.0, 5)), ("b", program.function("b", 1.0, 5))]
    selector = program.selector(pairs, max_problems=8, check=0.0, check_every=10)
    for problem in range(100):
        settle(selector, problem)
        assert held(selector) <= 8


def test_what_is_used_stays(program: Program) -> None:
    selector = program.selector({"a": 1.0, "b": 2.0}, max_problems=8)
    settle(selector, 1000)
    program.taken()
    for problem in range(100):
        settle(selector, problem)
        assert (1000,) in selector._knowledge.decisions
        program.taken()
        assert selector(1000) == "a"
        assert program.taken() == ["a"]


def test_an_evicted_problem_is_found_in_the_store(program: Program) -> None:
    store = DictStore()
    selector = program.selector({"a": 2.0, "b": 1.0}, max_problems=8, store=store)
    for problem in range(50):
        settle(selector, problem)
    assert not selector.best_method_has_been_found(0)
    program.taken()
    assert selector(0) == "b"
    assert program.taken() == ["b"]
    assert selector.explain(0).source == "stored"
    assert store.saves == 50


def test_an_unsettled_problem_that_leaves_memory_leaves_its_evidence(program: Program) -> None:
    store = DictStore()
    selector = program.selector({"a": 2.0, "b": 1.0}, max_problems=4, store=store, rounds=2)
    for problem in range(20):
        settle(selector, problem, calls=3)
    assert store.saves == 16
    assert [len(one.samples) for one in store.kept["it", "(0,)"].evidence] == [2, 1]
    assert store.kept["it", "(0,)"].decision is None
    program.taken()
    selector(0)
    assert program.taken() == ["b"]
    assert selector.explain(0).settled


def test_the_number_of_watched_problems_is_bounded(program: Program) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0}, max_problems=8)
    for problem in range(40):
        settle(selector, problem, calls=60)
        assert len(selector._knowledge.drifts) <= held(selector) <= 8
    assert selector._knowledge.drifts.keys() <= {*selector._settled, *selector._knowledge.older}


def test_a_settled_problem_takes_less_than_a_kibibyte(program: Program) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: n, max_problems=4096, on_event=None)
    settle(selector, 0)
    for problem in range(1, 200):
        settle(selector, problem)
    gc.collect()
    selector.journal._entries.clear()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for problem in range(1000, 2000):
            settle(selector, problem, calls=5)
            selector.journal._entries.clear()
            program.taken()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / 1000 < 1024


def test_a_dropped_selector_is_freed_at_once(program: Program) -> None:
    selector = program.selector(
        {"a": 1.0, "b": 2.0}, store=DictStore(), on_event=lambda entry: None
    )
    settle(selector, 1)
    selector(2)
    freed = weakref.ref(selector)
    gc.disable()
    try:
        del selector
        assert freed() is None
    finally:
        gc.enable()


def test_selectors_are_reported_oldest_first(program: Program) -> None:
    kept = [program.selector({"a": 1.0}, name=name) for name in ("z", "y", "x")]
    dropped = program.selector({"a": 1.0}, name="dropped")
    assert [selector for selector in registry.selectors() if selector in [*kept, dropped]] == [
        *kept,
        dropped,
    ]
    del dropped
    assert [one.selector for one in report_all().selectors][-3:] == ["z", "y", "x"]


def test_children_of_ever_new_problems_are_bounded(program: Program) -> None:
    inner = program.selector({"only": 1.0}, name="inner")
    numbers = iter(range(10**6))
    outer = program.selector(
        [("nested", lambda x: inner(next(numbers))), ("flat", program.function("flat", 2.0))],
        name="outer",
        rounds=200,
    )
    for _ in range(400):
        outer(1)
    assert outer.explain(1).settled
    assert len(outer.explain(1).alternatives[0].children) == 64


def test_a_trial_that_outlives_its_problem_brings_no_winner_without_a_decision(
    program: Program,
) -> None:
    meanwhile: list[int] = []

    def slow(n: int) -> str:
        program.clock.passes(2.0)
        if n == 1 and not meanwhile:
            meanwhile.extend(range(1, 9))
            for problem in meanwhile:  # 1 is settled, and then forgotten
                thread = threading.Thread(target=lambda n=problem: [selector(n) for _ in range(8)])
                thread.start()
                thread.join()
        return "slow"

    selector = program.selector(
        [("slow", slow), ("b", program.function("b", 1.0))], lambda n: n, max_problems=2
    )
    assert [selector(2), selector(1)] == ["slow", "slow"]
    assert 1 not in selector._knowledge.decisions
    assert {problem for problem, _ in selector._knowledge.winners()} <= set(
        selector._knowledge.decisions
    )
    for _ in range(8):
        selector(1)
    assert selector.best_method_has_been_found(1)
