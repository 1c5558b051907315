"""Copies of a selector, and selectors that are methods."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from fake_program import DictStore, Program

from bestof import Alternative, BestOf, best_of
from bestof.selection.decorator import Decorated


def slow(x: int) -> str:
    return "slow"


def fast(x: int) -> str:
    return "fast"


def settled(program: Program, **options: Any) -> BestOf:
    selector = program.selector({"a": 2.0, "b": 1.0}, **options)
    for _ in range(6):
        selector(1)
    return selector


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_starts_with_the_decisions_and_counts_for_itself(
    copied: Any, program: Program
) -> None:
    store = DictStore()
    selector = settled(
        program, store=store, rounds=2, check=lambda expected, got: True, on_event=[].append
    )
    again = copied(selector)
    program.taken()
    assert again(1) == selector(1) == "b"
    assert program.taken() == ["b", "b"]
    assert again.explain(1) == selector.explain(1)
    assert (again.settled_calls, selector.settled_calls, again.trials) == (1, 3, 0)
    assert again._knowledge.stored.find() is selector._knowledge.stored.find() is store
    assert again.total_rounds == 2
    assert again.journal is not selector.journal
    for name in ("settled", "decisions", "tunings", "stored"):
        assert getattr(again._knowledge, name) is not getattr(selector._knowledge, name)
    again(2)
    assert not selector.explain(2).settled
    assert selector.explain(2).alternatives[0].trials == 0


def test_a_copied_object_gets_a_selector_of_its_own_methods() -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = 1
            self.run = BestOf(
                "run", [("one", self.one), ("two", self.two)], lambda x: None, store="off"
            )

        def one(self, x: int) -> int:
            return self.weight * x

        def two(self, x: int) -> int:
            return x * self.weight

    model = Model()
    again = copy.deepcopy(model)
    again.weight = 10
    assert {model.run(2) for _ in range(40)} == {2}
    assert {again.run(2) for _ in range(40)} == {20}
    other = copy.deepcopy(model.run)  # from the other end of the circle
    assert other(2) == 2
    assert other.alternatives[0][1].__self__ is not model
    assert other.alternatives[0][1].__self__.run is other


def test_a_copy_has_the_attributes_that_a_program_set() -> None:
    selector = BestOf("it", [("slow", slow)], abs, store="off")
    selector.notes = ["mine"]  # type: ignore[attr-defined]  # a program may
    assert copy.copy(selector).notes is selector.notes  # type: ignore[attr-defined]
    assert copy.deepcopy(selector).notes is not selector.notes  # type: ignore[attr-defined]


def test_a_pickle_brings_the_decisions() -> None:
    selector = BestOf("it", [("slow", slow), ("fast", fast)], abs, 1, store="off")
    for _ in range(3):
        selector(1)
    again = pickle.loads(pickle.dumps(selector))
    assert again.explain(1) == selector.explain(1)
    assert again(1) == selector.explain(1).decision
    assert (again.settled_calls, again.trials) == (1, 0)


class Layer:
    """A class whose method is a selector."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def shifted(self, x: int) -> int:
        return (x << 1) * self.factor // 2

    @best_of(
        "scaled",
        [("shifted", shifted)],
        lambda self, x: (self.factor, x),
        policy="rounds:rounds=1",
        store="off",
    )
    def scaled(self, x: int) -> int:
        """Scale."""
        return x * self.factor


def test_the_decorator_makes_methods() -> None:
    three, five = Layer(3), Layer(5)
    assert [three.scaled(2) for _ in range(4)] == [6] * 4
    assert [five.scaled(x=2), Layer.scaled(five, 2)] == [10, 10]
    assert isinstance(Layer.scaled, Decorated)
    assert (Layer.scaled.__name__, Layer.scaled.__doc__) == ("scaled", "Scale.")
    assert {problem.problem for problem in Layer.scaled.report().problems} == {"(3, 2)", "(5, 2)"}
    assert three.scaled.explain(three, 2).settled


def test_a_selector_in_a_class_is_no_method() -> None:
    class Holder:
        scaled = BestOf("it", [("slow", slow)], abs, store="off")

    assert Holder().scaled(1) == "slow"


class Slotted(BestOf):
    """A subclass that keeps things in slots, and before the selector is made."""

    __slots__ = ("__own", "place")

    def __init__(self, place: str) -> None:
        self.place = place
        self.__own = f"{place} again"
        self.early = [place]
        super().__init__("it", [("slow", slow), ("fast", fast)], abs, 1, store="off")
        self.late = 1

    @property
    def own(self) -> str:
        return self.__own


COPIES = [copy.copy, copy.deepcopy, lambda selector: pickle.loads(pickle.dumps(selector))]


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_has_early_attributes_and_slots_of_a_subclass(
    copied: Any,
) -> None:
    again = copied(copied(Slotted("here")))
    assert (again.place, again.own, again.early, again.late) == ("here", "here again", ["here"], 1)


@pytest.mark.parametrize("copied", COPIES)
def test_a_problem_function_set_since_is_that_of_the_copy(copied: Any) -> None:
    selector = BestOf("it", [("slow", slow)], abs, store="off")
    selector.get_problem_size = len
    again = copied(selector)
    assert again("four") == "slow"
    assert again.get_problem_size is len


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_selector_that_checks_again_has_its_decisions(
    copied: Any, program: Program
) -> None:
    selector = settled(program, rounds=1, check=lambda expected, got: True, check_every=3)
    again = copied(selector)
    program.taken()
    assert (again.explain(1).decision, again(1), again(1)) == ("b", "b", "b")
    assert program.taken() == ["a", "b", "b"]  # compared at once, and after three calls
    again(1)
    assert program.taken() == ["a", "b"]


def test_a_copy_of_a_selector_whose_winner_calls_it_again(program: Program) -> None:
    holder: dict[str, BestOf] = {}

    def linear(n: int) -> str:
        program.clock.passes(float(n))
        return "linear"

    def halves(n: int) -> str:
        return holder["it"](1)  # type: ignore[no-any-return]  # it is Any

    alternatives = [("linear", linear), ("halves", halves)]
    selector = holder["it"] = program.selector(alternatives, lambda n: "it", rounds=1)
    for _ in range(4):
        selector(5)
    assert selector.explain(5).decision == "halves"
    again = holder["it"] = copy.copy(selector)
    assert again.explain(5).decision == "halves"
    assert again(5) == "linear"
    assert again.trials == 0


def test_a_copy_leaves_out_the_same(program: Program) -> None:
    """Also an alternative whose name is a part of the chosen one's."""
    slow = Alternative(
        "winograd", program.function("winograd", 5.0), unpromising=lambda _: "thought slow"
    )
    selector = program.selector(
        [slow, ("winograd4", program.function("winograd4", 1.0))],
        check=lambda expected, got: True,
        check_every=2,
    )
    selector(1)
    again = copy.copy(selector)
    for _ in range(6):
        again(1)
    assert set(program.taken()) == {"winograd4"}
