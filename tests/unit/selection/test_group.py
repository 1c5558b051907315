"""Groups: one alternative for all stages of a pass, whatever order the stages come in."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from fake_program import Program

from bestof import BestOf
from bestof.errors import StageError


def group(program: Program, *names: str, stages: int = 2, **options: Any) -> BestOf:
    """Alternatives by decreasing speed: the last is the fastest. Each stage answers its name and
    number."""
    alternatives = [
        (
            name,
            [
                program.function(f"{name}{stage}", float(len(names) - place))
                for stage in range(stages)
            ],
        )
        for place, name in enumerate(names)
    ]
    return program.selector(alternatives, **options)


def decided(selector: BestOf, *args: Any) -> str | None:
    return selector.explain(*args).decision


def test_a_pass_is_one_sample_of_one_alternative(program: Program) -> None:
    selector = group(program, "a", "b", "c", stages=3, rounds=2)
    for _ in range(6):
        for stage in range(3):
            selector(stage, 1)
    assert program.taken() == ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"] * 2
    assert decided(selector, 1) == "c"
    assert selector.explain(1).alternatives[0].seconds == 9.0
    assert [selector(2, 1), selector(0, 1)] == ["c2", "c0"]


def test_a_group_of_one_stage(program: Program) -> None:
    selector = group(program, "a", "b", stages=1)
    assert [selector(0, 1) for _ in range(5)] == ["a0", "b0", "a0", "b0", "b0"]


def test_passes_inside_each_other_keep_their_alternatives(program: Program) -> None:
    selector = group(program, "a", "b")
    for _ in range(4):
        assert [selector(stage, 1) for stage in (0, 0, 1, 1)] in (
            ["a0", "a0", "a1", "a1"],
            ["b0", "b0", "b1", "b1"],
        )
    assert decided(selector, 1) == "b"


def test_the_problem_function_does_not_see_the_stage(program: Program) -> None:
    seen = []
    selector = program.selector(
        [("a", [len, len])], lambda *args, **kwargs: seen.append((args, kwargs))
    )
    assert selector(1, "text") == 4
    assert seen == [(("text",), {})]


def test_passes_that_are_never_finished_neither_block_nor_grow(program: Program) -> None:
    selector = group(program, "a", "b")
    for _ in range(5000):
        assert selector(0, 1) == "a0"
    assert len(selector._knowledge.tunings[1,].passes) == 4096
    for _ in range(4):
        stages = [selector(0, 1), selector(1, 1)]
        assert stages in (["a0", "a1"], ["b0", "b1"])
    assert decided(selector, 1) == "b"


def test_passes_from_before_a_decision_are_finished_after_it(program: Program) -> None:
    selector = group(program, "a", "b")
    assert selector(0, 1) == "a0"  # its backward comes last
    for _ in range(4):
        selector(0, 1)
        selector(1, 1)
    assert decided(selector, 1) == "b"
    assert (1,) in selector._settled
    assert [selector(0, 1), selector(1, 1)] == [
        "b0",
        "b1",
    ]  # a pass begun since the decision is the decision's
    assert selector(1, 1) == "a1"  # and the one from before it is finished by whoever began it
    assert selector(1, 1) == "b1"  # whatever comes then was begun by nobody who is known


def test_abandoned_passes_change_nothing_for_those_after_a_decision(program: Program) -> None:
    selector = group(program, "a", "b")
    for _ in range(3):
        selector(0, 1)
    for _ in range(4):
        selector(0, 1)
        selector(1, 1)
    assert (1,) in selector._settled
    for _ in range(50):
        assert [selector(0, 1), selector(1, 1)] == ["b0", "b1"]


class Layers:
    """A program of equal layers, forwards first and then backwards: an alternative counts a
    backward that is not its own forward's."""

    def __init__(self, program: Program, **options: Any) -> None:
        self.costs = {"a": 2.0, "b": 1.0, "c": 3.0}
        self.by: dict[int, str] = {}
        self.wrong = 0
        self.program = program
        alternatives = [(name, [self.forward(name), self.backward(name)]) for name in self.costs]
        self.selector = program.selector(alternatives, lambda layer: "it", **options)

    def forward(self, name: str) -> Any:
        def run(layer: int) -> None:
            self.program.clock.passes(self.costs[name])
            self.by[layer] = name

        return run

    def backward(self, name: str) -> Any:
        def run(layer: int) -> None:
            self.program.clock.passes(self.costs[name])
            self.wrong += self.by[layer] != name

        return run

    def step(self, layers: int) -> None:
        for layer in range(layers):
            self.selector(0, layer)
        for layer in reversed(range(layers)):
            self.selector(1, layer)


def test_hundreds_of_equal_layers_finish_each_pass_with_its_alternative(program: Program) -> None:
    layers = Layers(program)
    for _ in range(4):
        layers.step(300)
    assert (layers.wrong, layers.selector.explain(0).decision) == (0, "b")


def test_hundreds_of_equal_layers_in_a_reopened_race(program: Program) -> None:
    layers = Layers(program)
    for _ in range(30):
        layers.step(1)
    layers.costs["b"] = 5.0
    for _ in range(40):
        layers.step(300)
    assert (layers.wrong, layers.selector.explain(0).decision) == (0, "a")
    assert len(layers.selector._knowledge.decisions["it"].history) == 1


def test_a_decision_between_forwards_leaves_each_pass_to_its_alternative(
    program: Program,
) -> None:
    layers = Layers(program)
    selector = layers.selector
    for layer in range(100):
        selector(0, layer)
        if layer == 10:
            selector._knowledge.tunings["it"].disqualify(2, "it failed")
    selector._knowledge.tunings["it"].disqualify(1, "it failed")  # as an attempt that fails does
    with selector._knowledge.lock:
        selector._knowledge.conclude(selector._knowledge.tunings["it"])
    for layer in range(100, 500):
        selector(0, layer)
    for layer in reversed(range(500)):
        selector(1, layer)
    assert (layers.wrong, selector.explain(0).decision) == (0, "a")


def test_a_stage_whose_pass_was_never_begun_is_answered_and_counts_for_nothing(
    program: Program,
) -> None:
    selector = group(program, "a", "b", stages=3)
    assert [selector(2, 1), selector(1, 1)] == ["a2", "a1"]
    assert selector.trials == 0
    assert [selector(stage, 1) for stage in (0, 1, 1, 2)] == ["a0", "a1", "a1", "a2"]
    assert selector.explain(1).alternatives[0].trials == 1
    assert selector.explain(1).alternatives[0].seconds == 6.0


@pytest.mark.parametrize("stage", [2, -1, 100, True, False, 1.0, "0", None])
def test_a_stage_that_the_group_does_not_have(stage: Any, program: Program) -> None:
    selector = group(program, "a", "b")
    with pytest.raises(StageError, match="expected a stage from 0 to 1; got"):
        selector(stage, 1)
    assert program.taken() == []


def test_a_stage_that_the_group_does_not_have_after_a_decision(program: Program) -> None:
    selector = group(program, "a", "b", stages=1)
    for _ in range(4):
        selector(0, 1)
    for stage in (1, -1, "0"):
        with pytest.raises(StageError):
            selector(stage, 1)


def test_each_thread_finishes_the_pass_that_it_began(program: Program) -> None:
    selector = group(program, "a", "b")
    steps: list[str] = []
    begun, finish = threading.Event(), threading.Event()

    def other() -> None:
        steps.append(selector(0, 1))
        begun.set()
        assert finish.wait(250)
        steps.append(selector(1, 1))

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(250)
    assert [selector(0, 1), selector(1, 1)] == ["a0", "a1"]
    assert selector(0, 1) == "b0"  # the youngest open pass, and of another thread
    finish.set()
    thread.join()
    assert steps == ["a0", "a1"]
    assert selector(1, 1) == "b1"


def test_a_stage_of_another_thread_may_finish_a_pass(program: Program) -> None:
    selector = group(program, "a", "b")
    for _ in range(4):
        first, second = selector(0, 1), []
        thread = threading.Thread(target=lambda found=second: found.append(selector(1, 1)))
        thread.start()
        thread.join()
        assert second == [first.replace("0", "1")]
    assert decided(selector, 1) == "b"


def test_a_pass_in_its_first_stage_takes_no_second_stage(program: Program) -> None:
    inner: list[str] = []

    def first(x: int) -> str:
        program.clock.passes(1.0)
        if not inner:
            inner.append(selector(1, x))
        return "b0"

    selector = program.selector(
        [
            ("a", [program.function("a0", 3.0), program.function("a1", 3.0)]),
            ("b", [first, program.function("b1", 1.0)]),
        ]
    )
    selector(0, 1)
    selector(1, 1)
    selector(0, 1)
    assert inner == ["a1"]


def test_an_interrupted_stage_leaves_no_pass_to_be_finished(program: Program) -> None:
    def interrupted(x: int) -> None:
        raise KeyboardInterrupt

    selector = program.selector(
        [("a", [interrupted, program.function("a1", 1.0)]), ("b", [str, program.function("b1", 1)])]
    )
    with pytest.raises(KeyboardInterrupt):
        selector(0, 1)
    assert len(selector._knowledge.tunings[1,].passes) == 0


def test_a_group_that_fails_in_its_second_stage_is_replaced_and_its_time_is_no_sample(
    program: Program,
) -> None:
    alternatives = [
        ("a", [program.function("a0", 5.0), program.function("a1", 5.0)]),
        ("b", [program.function("b0", 1.0), program.failing("b1", ValueError("no"))]),
        ("c", [program.function("c0", 4.0), program.function("c1", 4.0)]),
    ]
    selector = program.selector(alternatives)
    assert [selector(0, 1), selector(1, 1), selector(0, 1)] == ["a0", "a1", "b0"]
    with pytest.warns(RuntimeWarning, match="'b' was disqualified: raised ValueError: no"):
        assert selector(1, 1) == "a1"
    assert [row.trials for row in selector.explain(1).alternatives] == [1, 0, 0]
    for _ in range(3):
        selector(0, 1)
        selector(1, 1)
    assert decided(selector, 1) == "c"
    assert [row.seconds for row in selector.explain(1).alternatives] == [10.0, None, 8.0]


def test_a_group_that_fails_in_its_first_stage_hands_the_pass_on(program: Program) -> None:
    alternatives = [
        ("a", [program.failing("a0", ValueError("no")), program.function("a1", 5.0)]),
        ("b", [program.function("b0", 1.0), program.function("b1", 1.0)]),
        ("c", [program.function("c0", 4.0), program.function("c1", 4.0)]),
    ]
    selector = program.selector(alternatives)
    with pytest.warns(RuntimeWarning, match="'a' was disqualified"):
        assert selector(0, 1) == "b0"
    assert selector(1, 1) == "b1"
    assert [row.trials for row in selector.explain(1).alternatives] == [0, 1, 0]


def test_every_stage_of_a_group_is_checked(program: Program) -> None:
    def stage(answer: int) -> Any:
        return program.function(str(answer), 1.0, answer)

    selector = program.selector(
        [("a", [stage(1), stage(2)]), ("b", [stage(1), stage(3)]), ("c", [stage(1), stage(2)])],
        check=0.0,
    )
    assert [selector(0, 1), selector(1, 1), selector(0, 1)] == [1, 2, 1]
    with pytest.warns(
        RuntimeWarning, match="'b' was disqualified: wrong result: result: off by 0.5"
    ):
        assert selector(1, 1) == 2
