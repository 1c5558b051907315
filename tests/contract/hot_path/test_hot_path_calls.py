"""What a settled call does: arguments, stages, samples and detours, natively and in Python."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import pytest
from settled_selector import Told, answers_itself, first_argument, make_selector, make_winner

from bestof.errors import StageError
from bestof.selection.hot_path import PythonHotPath
from bestof.selection.passes import WHILE_SAMPLED
from bestof.selection.trials.trial import detours


def test_a_settled_problem_calls_the_winner_with_all_arguments(kind: type[PythonHotPath]) -> None:
    selector = make_selector(kind)
    assert selector(1) == ("winner", (1,), {})
    assert selector(1, 2, *range(9), key="word", other=3) == (
        "winner",
        (1, 2, *range(9)),
        {"key": "word", "other": 3},
    )
    assert selector(*[1], **{"a b": 4}) == ("winner", (1,), {"a b": 4})
    assert selector.told == []
    assert selector._settled[1].calls == 3


def test_the_problem_function_sees_keywords(kind: type[PythonHotPath]) -> None:
    selector = make_selector(kind, get_problem_size=lambda *, size, **others: size)
    assert selector(size=1, more=2) == ("winner", (), {"size": 1, "more": 2})
    assert selector(size=5) == "long way"
    assert selector.told == [(5, 0, (), {"size": 5})]
    assert selector._settled[1].calls == 1


@pytest.mark.parametrize("form", ["direct", "tuple", "class"])
def test_every_way_to_call_is_one(kind: type[PythonHotPath], form: str) -> None:
    selector = make_selector(kind)
    given = {"k": 2}
    answer, long = {
        "direct": lambda: (selector(1, k=2), selector(7, k=2)),
        "tuple": lambda: (selector(*(1,), **given), selector(*(7,), **given)),
        "class": lambda: (
            type(selector).__call__(selector, 1, k=2),
            type(selector).__call__(selector, 7, k=2),
        ),
    }[form]()
    assert answer == ("winner", (1,), {"k": 2})
    assert long == "long way"
    assert selector.told == [(7, 0, (7,), {"k": 2})]
    assert selector.told[0][3] is not given


def test_a_stage_comes_first_and_reaches_no_function(kind: type[PythonHotPath]) -> None:
    selector = make_selector(kind, stages=2)
    assert selector(0, 1, a=2) == ("winner", (1,), {"a": 2})
    assert selector(1, 1, a=2) == ("second", (1,), {"a": 2})
    assert selector(*(1, 1), **{"a": 2}) == ("second", (1,), {"a": 2})
    assert selector(1, 1, stage=3) == ("second", (1,), {"stage": 3})
    assert selector(1, 7, 5, a=3) == "long way"
    assert selector(0, 8) == "long way"
    assert selector.told == [(7, 1, (7, 5), {"a": 3}), (8, 0, (8,), {})]
    assert selector._settled[1].calls == 4


class Stage(IntEnum):
    FORWARD = 0
    BACKWARD = 1


def test_a_stage_may_be_named(kind: type[PythonHotPath]) -> None:
    selector = make_selector(kind, stages=2)
    assert selector(Stage.BACKWARD, 1) == ("second", (1,), {})
    assert selector(Stage.FORWARD, 7) == "long way"
    assert [type(stage) for _, stage, *_ in selector.told] == [int]


@pytest.mark.parametrize(
    ("stage", "got"),
    [
        *((True, "True"), (False, "False"), (2, "2"), (-1, "-1"), (2**80, str(2**80))),
        *(("1", "'1'"), (1.0, "float"), ([], "list"), (None, "None")),
    ],
)
def test_an_invalid_stage_is_refused_before_the_problem_function(
    kind: type[PythonHotPath], stage: Any, got: str
) -> None:
    asked = []
    selector = make_selector(kind, stages=2, get_problem_size=lambda *args: asked.append(args))
    with pytest.raises(StageError, match=f"'contract'.*expected a stage from 0 to 1; got {got}"):
        selector(stage, 1)
    assert asked == selector.told == []


def test_a_group_without_any_argument_has_no_stage(kind: type[PythonHotPath]) -> None:
    selector = make_selector(kind, stages=2)
    for call in (selector, lambda: selector(stage=0)):
        with pytest.raises(StageError, match="got no argument"):
            call()


def test_the_call_that_reaches_the_count_is_sampled(kind: type[PythonHotPath]) -> None:
    plain, group = make_selector(kind), make_selector(kind, stages=2)
    for selector, stage in ((plain, ()), (group, (1,))):
        winner = selector._settled[1]
        winner.sample_at = 2
        answers = [selector(*stage, 1, k=number) for number in range(6)]
        assert [number for number, answer in enumerate(answers) if answer == "sampled"] == [1, 4]
        assert winner.calls == 6
        assert selector.told == []
        assert selector.samples[0] == (
            winner,
            2 + WHILE_SAMPLED,
            1,
            *(stage or (0,)),
            (1,),
            {"k": 1},
        )


def test_a_detour_comes_before_a_sample(kind: type[PythonHotPath]) -> None:
    selector = make_selector(kind)
    selector._settled[1].sample_at = 0
    detours.append(None)
    try:
        assert selector(1) == "long way"
    finally:
        detours.remove(None)
    assert selector(1) == "sampled"


def test_an_error_of_a_sampled_call_passes_unchanged(kind: type[PythonHotPath]) -> None:
    class Fails(type(make_selector(kind))):  # type: ignore[misc]  # a class made by a function
        def _sampled(self, *args: Any) -> Any:
            raise KeyError("mine")

    selector = Fails()
    selector.get_problem_size, selector._settled = (
        first_argument,
        {1: make_winner(kind, answers_itself, sample_at=1)},
    )
    with pytest.raises(KeyError, match="mine"):
        selector(1)
    assert selector._settled[1].sample_at == 1 + WHILE_SAMPLED


def test_a_detour_takes_the_long_way(kind: type[PythonHotPath]) -> None:
    plain, group = make_selector(kind), make_selector(kind, stages=2)
    detours.append(None)
    try:
        assert plain(1) == group(1, 1) == "long way"
    finally:
        detours.remove(None)
    assert plain.told == [(1, 0, (1,), {})]
    assert group.told == [(1, 1, (1,), {})]
    assert plain._settled[1].calls == group._settled[1].calls == 0
    assert plain(1) == ("winner", (1,), {})


@pytest.mark.parametrize("function", [abs, (5).__add__, complex, lambda x: x, "a{}".format])
def test_winners_of_every_kind(kind: type[PythonHotPath], function: Callable[..., Any]) -> None:
    selector, group = (
        make_selector(kind, _settled={1: make_winner(kind, function)}),
        make_selector(kind, stages=5),
    )
    group._settled = {1: make_winner(kind, *[answers_itself] * 4, function)}
    for _ in range(20):
        assert selector(1) == group(4, 1) == function(1)
        assert selector(*(1,)) == group(*(4, 1)) == function(1)


def test_a_bound_method_with_many_arguments(kind: type[PythonHotPath]) -> None:
    class Keeper:
        def give(self, *args: Any, **kwargs: Any) -> Any:
            return self, args, kwargs

    keeper = Keeper()
    group = make_selector(kind, stages=2, _settled={1: make_winner(kind, keeper.give)})
    args = (1, *range(20))
    assert group(0, *args, z=1) == (keeper, args, {"z": 1})
    assert group(0, 1, 2, z=1) == (keeper, (1, 2), {"z": 1})


def test_a_subclass_may_override_the_call(kind: type[PythonHotPath]) -> None:
    class Doubles(type(make_selector(kind))):  # type: ignore[misc]  # a class made by a function
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return [super().__call__(*args, **kwargs)] * 2

    selector = Doubles()
    selector.told, selector.get_problem_size, selector._settled = (
        Told(),
        first_argument,
        {1: make_winner(kind, answers_itself)},
    )
    assert selector(1, k=3) == [("winner", (1,), {"k": 3})] * 2
    assert selector(9) == ["long way"] * 2


def test_a_call_that_the_class_gets_later_counts(kind: type[PythonHotPath]) -> None:
    selector = make_selector(kind)
    assert selector(1, k=2) == ("winner", (1,), {"k": 2})
    type(selector).__call__ = lambda self, *args, **kwargs: ("later", args, kwargs)
    assert selector(1, k=2) == ("later", (1,), {"k": 2})
