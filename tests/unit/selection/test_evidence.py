"""The evidence that one run leaves to the next, through a store in a dict."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from fake_program import BrokenStore, DictStore, Program

from bestof import Alternative, BestOf
from bestof.errors import BestofWarning
from bestof.selection.policies import Fixed, Rounds, Window
from bestof.selection.reports.report import Met
from bestof.selection.state import registry


def settle(selector: BestOf, *problems: int, calls: int = 12) -> BestOf:
    for problem in problems or (1,):
        for _ in range(calls):
            selector(problem)
    return selector


def test_a_decision_is_saved_once_and_found_again(program: Program) -> None:
    store = DictStore()
    settle(program.selector({"a": 2.0, "b": 1.0}, store=store))
    assert (store.saves, store.kept["it", "(1,)"].decision) == (1, "b")
    program.taken()
    again = program.selector({"a": 2.0, "b": 1.0}, store=store)
    assert again(1) == "b"
    assert program.taken() == ["b"]
    assert again.explain(1).source == "stored"
    assert (1,) in again._settled
    again.flush()
    assert store.saves == 1


def test_partial_evidence_is_saved_once_and_the_next_run_goes_on(program: Program) -> None:
    store = DictStore()
    first = program.selector({"a": 2.0, "b": 1.0}, store=store, rounds=3)
    for _ in range(3):
        first(1)
    assert store.saves == 0
    registry._flush_all()
    registry._flush_all()
    first.flush()
    assert store.saves == 1
    program.taken()
    second = settle(program.selector({"a": 2.0, "b": 1.0}, store=store, rounds=3), calls=4)
    assert program.taken() == ["b", "a", "b", "b"]
    assert [row.trials for row in second.explain(1).alternatives] == [3, 3]


def test_nothing_measured_is_nothing_saved(program: Program) -> None:
    store = DictStore()
    selector = program.selector({"only": 1.0}, store=store)
    settle(selector)
    selector.flush()
    assert store.saves == 0


def test_an_added_alternative_measures_only_itself(program: Program) -> None:
    store = DictStore()
    settle(program.selector({"a": 2.0, "b": 1.0}, store=store))
    program.taken()
    settle(program.selector({"a": 2.0, "new": 0.5, "b": 1.0}, store=store), calls=4)
    assert program.taken() == ["new"] * 4
    assert store.kept["it", "(1,)"].decision == "new"


def test_a_removed_alternative_costs_nothing(program: Program) -> None:
    store = DictStore()
    settle(program.selector({"a": 3.0, "b": 1.0, "c": 2.0}, store=store))
    program.taken()
    assert (
        settle(program.selector({"a": 3.0, "c": 2.0}, store=store), calls=2).explain(1).decision
        == "c"
    )
    assert program.taken() == ["c", "c"]


def test_a_changed_version_is_measured_again(program: Program) -> None:
    store = DictStore()

    def versions(version: str, seconds: float) -> list[Alternative]:
        fast = Alternative("fast", program.function("fast", seconds), [version])
        return [Alternative("slow", program.function("slow", 2.0)), fast]

    settle(program.selector(versions("1.0", 1.0), store=store))
    program.taken()
    selector = settle(program.selector(versions("2.0", 5.0), store=store), calls=4)
    assert program.taken() == ["fast", "fast", "slow", "slow"]
    assert selector.explain(1).decision == "slow"


def test_an_error_is_remembered_and_tried_again_once_by_the_next_process(program: Program) -> None:
    store = DictStore()
    pairs = [("a", program.function("a", 1.0)), ("b", program.failing("b", ValueError("no")))]
    first = program.selector(pairs, store=store)
    first(1)
    with pytest.warns(BestofWarning):
        first(1)
    program.taken()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the first process told the same reason
        second = settle(program.selector(pairs, store=store))
    taken = program.taken()
    assert (taken[0], taken.count("b")) == ("a", 1)
    assert (second.explain(1).decision, second.explain(1).source) == ("a", "stored")
    (kept,) = [one for one in store.kept["it", "(1,)"].evidence if one.alternative == "b"]
    assert re.fullmatch(
        r"raised ValueError: no, on \d{4}-\d\d-\d\d \d\d:\d\d UTC.*", kept.disqualified
    )


def test_another_error_is_reported(program: Program) -> None:
    store, words = DictStore(), ["no"]

    def failing(x: int) -> None:
        raise ValueError(words[0])

    pairs = [("a", program.function("a", 1.0)), Alternative("b", failing, ["1"])]
    for word in ("no", "not now"):
        words[0] = word
        with pytest.warns(BestofWarning, match=f"'b' was disqualified: raised ValueError: {word}"):
            settle(program.selector(pairs, store=store))


def passes(selector: BestOf) -> list[tuple[str, str]]:
    return [(selector(0, 1), selector(1, 1)) for _ in range(12)]


def test_a_retried_alternative_is_compared_with_the_stored_times(program: Program) -> None:
    store, fails = DictStore(), [True]
    costs = {"b0": 1.0, "b1": 1.0}

    def stage(name: str) -> Callable[[int], str]:
        def function(x: int) -> str:
            program.clock.passes(costs[name])
            if fails:
                raise ValueError("meta tensors")
            return name

        return function

    pairs = [
        ("a", [program.function("a0", 2.0), program.function("a1", 2.0)]),
        Alternative("b", [stage("b0"), stage("b1")], ["1"]),
        ("c", [program.function("c0", 3.0), program.function("c1", 3.0)]),
    ]
    first = program.selector(pairs, store=store)
    with pytest.warns(BestofWarning):
        passes(first)
    assert first.explain(1).decision == "a"
    fails.clear()
    second = program.selector(pairs, store=store)
    assert passes(second) == [("a0", "a1"), *[("b0", "b1")] * 11]
    assert (second.explain(1).decision, store.kept["it", "(1,)"].decision) == ("b", "b")
    assert set(passes(program.selector(pairs, store=store))) == {("b0", "b1")}


def test_a_wrong_result_keeps_an_alternative_out(program: Program) -> None:
    store = DictStore()
    pairs = [("a", program.function("a", 2.0, 5)), ("b", program.function("b", 1.0, 6))]
    with pytest.warns(BestofWarning, match="wrong result"):
        settle(program.selector(pairs, store=store, check=0.0))
    program.taken()
    settle(program.selector(pairs, store=store))
    assert set(program.taken()) == {"a"}


def test_a_retry_is_left_where_its_failure_would_be_the_users(program: Program) -> None:
    store, fails = DictStore(), program.failing("b", ValueError("no"))

    def selector(*, mutates: bool, **options: Any) -> BestOf:
        b = Alternative("b", fails, ["1"], mutates=mutates)
        return program.selector([("a", program.function("a", 1.0)), b], store=store, **options)

    with pytest.warns(BestofWarning):
        settle(selector(mutates=False))
    program.taken()
    settle(selector(mutates=True))
    assert set(program.taken()) == {"a"}


def test_records_that_disqualify_all_alternatives_are_not_used(program: Program) -> None:
    store = DictStore()
    bad = program.failing("b", ValueError("no"))
    for pairs in ([("a", str), ("b", bad)], [("b", str), ("a", bad)]):
        selector = program.selector(pairs, store=store)
        with pytest.warns(BestofWarning):
            assert {selector(1) for _ in range(3)} == {"1"}
    swapped = program.selector([("a", str), ("b", bad)], store=store)
    with pytest.warns(BestofWarning):  # of the other two functions, `b` was the faster: it is first
        assert swapped(1) == "1"


def test_a_problem_that_cannot_be_written_down_is_remembered_by_the_process_alone(
    program: Program,
) -> None:
    store = DictStore()
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda x: str, store=store)
    settle(selector)
    selector.flush()
    assert (store.loads, store.saves) == (0, 0)
    assert selector(1) == "b"


def test_a_fixed_decision_is_no_evidence(program: Program) -> None:
    store = DictStore()
    settle(program.selector({"a": 2.0, "b": 1.0}, store=store))
    settle(program.selector({"a": 2.0, "b": 1.0}, store=store, policy=Fixed("a")))
    assert (store.saves, store.kept["it", "(1,)"].decision) == (1, "b")
    fresh = DictStore()
    settle(program.selector({"a": 2.0, "b": 1.0}, store=fresh, policy=Fixed("a"))).flush()
    assert fresh.saves == 0


def test_a_fixed_alternative_wins_against_the_store(program: Program) -> None:
    store = DictStore()
    settle(program.selector({"a": 2.0, "b": 1.0}, store=store))
    pinned = program.selector({"a": 2.0, "b": 1.0}, store=store, policy="fixed:a")
    assert pinned(1) == "a"
    assert pinned.explain(1).source == "forced"


def test_a_window_that_ends_too_early_decides_but_saves_only_evidence(program: Program) -> None:
    store, window = DictStore(), Window(0, 1)
    selector = program.selector({"a": 2.0, "b": 1.0}, store=store, policy=window)
    selector(1)
    window.step()
    assert selector(1) == "a"
    assert selector.explain(1).source == "window"
    assert store.kept["it", "(1,)"].decision is None
    assert [one.alternative for one in store.kept["it", "(1,)"].evidence] == ["a"]
    assert selector(2) == "a"  # first met after the window
    assert window.missed == 1
    assert ("it", "(2,)") not in store.kept


def test_times_before_a_window_are_no_evidence(program: Program) -> None:
    store, window, seconds = DictStore(), Window(1, 9, Rounds(rounds=2)), [9.0]

    def warming(n: int) -> str:
        program.clock.passes(seconds[0])
        return "a"

    pairs = [("a", warming), ("b", program.function("b", 2.0))]
    selector = program.selector(pairs, store=store, policy=window)
    settle(selector, calls=5)
    window.step()
    seconds[0] = 1.0
    settle(selector, calls=12)
    kept = {one.alternative: one.samples for one in store.kept["it", "(1,)"].evidence}
    assert kept == {"a": (1.0, 1.0), "b": (2.0, 2.0)}
    selector.met = lambda: {(1,): Met(17)}
    assert selector.report().problems[0].settled_calls == selector.settled_calls == 8


def test_after_a_window_stored_evidence_still_decides(program: Program) -> None:
    store, window = DictStore(), Window(0, 1)
    settle(program.selector({"a": 2.0, "b": 1.0}, store=store, policy="race"), calls=80)
    window.step()
    selector = program.selector({"a": 2.0, "b": 1.0}, store=store, policy=window)
    assert selector(1) == "b"
    assert (selector.explain(1).source, window.missed) == ("stored", 0)


def test_after_a_window_a_stored_decision_holds_although_some_were_left_out(
    program: Program,
) -> None:
    store, window = DictStore(), Window(0, 1)
    costs = {"a": 1.0, "b": 0.995, "hopeless": 9.0}  # a near-tie, which goes to the first
    first = program.selector(costs, lambda n: n, store=store, neighbours=lambda n: [n - 1])
    settle(first, 1, 2, calls=60)
    assert store.kept["it", "2"].decision == "a"
    window.step()
    selector = program.selector(costs, lambda n: n, store=store, policy=window)
    assert selector(2) == "a"
    assert (selector.explain(2).source, window.missed) == ("stored", 0)


def test_a_window_that_decides_in_time_saves_its_decision(program: Program) -> None:
    store = DictStore()
    selector = program.selector(
        {"a": 2.0, "b": 1.0}, store=store, policy="window:0-9,rounds:rounds=2"
    )
    settle(selector)
    assert (selector.explain(1).source, store.kept["it", "(1,)"].decision) == ("measured", "b")


def test_a_broken_store_is_warned_of_once_and_costs_no_call(program: Program) -> None:
    store = BrokenStore()
    selector = program.selector({"a": 2.0, "b": 1.0}, store=store)
    with pytest.warns(
        BestofWarning, match="the store failed and is no longer used: OSError: the disk is gone"
    ) as caught:
        settle(selector, 1, 2)
    selector.flush()
    assert len(caught) == 1
    assert (store.loads, store.saves) == (1, 0)
    assert selector.explain(2).decision == "b"


def test_groups_are_verified_stage_by_stage(program: Program) -> None:
    store, broken = DictStore(), []

    def b1(x: int) -> str:
        program.clock.passes(1.0)
        if broken:
            raise OSError("gone")
        return "b1"

    pairs = [
        ("a", [program.function("a0", 2.0), program.function("a1", 2.0)]),
        ("b", [program.function("b0", 1.0), b1]),
        ("c", [program.function("c0", 3.0), program.function("c1", 3.0)]),
    ]
    first = program.selector(pairs, store=store)
    for _ in range(6):
        first(0, 1)
        first(1, 1)
    broken.append(True)
    second = program.selector(pairs, store=store)
    assert second(0, 1) == "b0"
    with pytest.warns(BestofWarning, match="'b' was disqualified: raised OSError"):
        assert second(1, 1) == "a1"
    assert [second(0, 1), second(1, 1)] == ["a0", "a1"]
    assert store.kept["it", "(1,)"].decision == "a"


def test_a_stored_group_that_never_goes_on_reaches_the_hot_path(program: Program) -> None:
    store = DictStore()
    pairs = [
        (name, [program.function(f"{name}{stage}", cost) for stage in (0, 1)])
        for name, cost in (("a", 2.0), ("b", 1.0))
    ]
    first = program.selector(pairs, store=store)
    for _ in range(4):
        first(0, 1)
        first(1, 1)
    second = program.selector(pairs, store=store)
    assert {second(0, 1) for _ in range(70)} == {"b0"}
    assert (1,) in second._settled


def test_a_decision_that_left_the_hopeless_out_starts_settled(program: Program) -> None:
    store = DictStore()
    costs = {"a": 2.0, "b": 1.0, "hopeless": 9.0}

    def selector(**more: float) -> BestOf:
        return program.selector(
            {**costs, **more}, lambda n: n, store=store, neighbours=lambda n: [n - 1]
        )

    first = settle(selector(), 1, 2, calls=30)
    assert [row.trials > 0 for row in first.explain(2).alternatives] == [True, True, False]
    assert store.kept["it", "2"].decision == "b"
    program.taken()
    assert settle(selector(), 2, calls=9).explain(2).source == "stored"
    assert set(program.taken()) == {"b"}
    assert settle(selector(new=0.5), 2, calls=99).explain(2).decision == "new"


def test_an_alternative_that_was_left_out_and_changed_is_measured(program: Program) -> None:
    store = DictStore()

    def selector(version: str) -> BestOf:
        slow = Alternative(
            "slow", program.function("slow", 9.0 if version == "1" else 0.5), [version]
        )
        fast = [
            (name, program.function(name, seconds)) for name, seconds in (("a", 2.0), ("b", 1.0))
        ]
        return program.selector(
            [*fast, slow], lambda n: n, store=store, neighbours=lambda n: [n - 1]
        )

    settle(selector("1"), 1, 2, calls=30)
    assert settle(selector("2"), 2, calls=99).explain(2).decision == "slow"
