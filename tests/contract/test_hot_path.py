"""What the settled call promises, natively and in plain Python; one suite over one table, hence
past 400 lines."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from typing import Any

import pytest

from bestof.errors import ProblemError, StageError
from bestof.selection.hot_path import NativeHotPath, NativeWinner, PythonHotPath, native_timed
from bestof.selection.open_passes import OpenPasses
from bestof.selection.trial import Trial, current_trial, detours, timed_in_python
from bestof.selection.winner import NEVER, PASSES_KEPT, THREADS_KEPT, PythonWinner

IMPLEMENTATIONS: dict[str, type[PythonHotPath] | None] = {
    "python": PythonHotPath,
    "native": NativeHotPath,
}


def _answers_itself(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return ("winner", args, kwargs)


def _first(*args: Any, **kwargs: Any) -> Any:
    return args[0]


class Told(list[tuple[Any, ...]]):
    """The calls that took the long way."""


def _winner(
    kind: type[PythonHotPath], *functions: Callable[..., Any], sample_at: int = NEVER
) -> PythonWinner:
    made = PythonWinner if issubclass(kind, PythonHotPath) else NativeWinner
    assert made is not None
    return made(functions, sample_at)


def _selector(kind: type[PythonHotPath], *, stages: int = 0, **attributes: Any) -> Any:
    """Problem 1 is settled; a group has so many stages, and its winner answers the second by
    `_second_stage`."""

    class Selector(kind):  # type: ignore[valid-type,misc]  # a parameter of the test
        def _long_way(
            self, problem: Any, stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            self.told.append((problem, stage, args, kwargs))
            return "long way"

        def _sampled(
            self, winner: Any, problem: Any, stage: int, args: tuple[Any, ...], kwargs: Any
        ) -> Any:
            self.samples.append((winner, winner.sample_at, problem, stage, args, kwargs))
            winner.sample_at = winner.calls + 3
            return "sampled"

    selector = Selector()
    selector.name = "contract"
    selector.told, selector.samples = Told(), []
    selector.get_problem_size = _first
    selector._stage_count = stages
    selector._settled = {1: _winner(kind, *[_answers_itself, *[_second_stage] * (stages - 1)])}
    for name, value in attributes.items():
        setattr(selector, name, value)
    return selector


def _second_stage(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return ("second", args, kwargs)


class Importable(PythonHotPath):
    """A subclass that pickle finds by its name."""


if NativeHotPath is not None:

    class NativeImportable(NativeHotPath):  # type: ignore[valid-type,misc]  # chosen at run time
        """The same, native."""


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def kind(request: pytest.FixtureRequest) -> type[PythonHotPath]:
    found = IMPLEMENTATIONS[request.param]
    if found is None:
        pytest.skip("the native extension was not built")
    return found


@pytest.fixture(autouse=True)
def no_detours() -> Iterator[None]:
    yield
    assert not detours


def test_a_settled_problem_calls_the_winner_with_all_arguments(kind: type[PythonHotPath]) -> None:
    selector = _selector(kind)
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
    selector = _selector(kind, get_problem_size=lambda *, size, **others: size)
    assert selector(size=1, more=2) == ("winner", (), {"size": 1, "more": 2})
    assert selector(size=5) == "long way"
    assert selector.told == [(5, 0, (), {"size": 5})]
    assert selector._settled[1].calls == 1


@pytest.mark.parametrize("form", ["direct", "tuple", "class"])
def test_every_way_to_call_is_one(kind: type[PythonHotPath], form: str) -> None:
    selector = _selector(kind)
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
    selector = _selector(kind, stages=2)
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
    selector = _selector(kind, stages=2)
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
def test_a_stage_that_is_none_is_refused_before_the_problem_function(
    kind: type[PythonHotPath], stage: Any, got: str
) -> None:
    asked = []
    selector = _selector(kind, stages=2, get_problem_size=lambda *args: asked.append(args))
    with pytest.raises(StageError, match=f"'contract'.*expected a stage from 0 to 1; got {got}"):
        selector(stage, 1)
    assert asked == selector.told == []


def test_a_group_without_any_argument_has_no_stage(kind: type[PythonHotPath]) -> None:
    selector = _selector(kind, stages=2)
    for call in (selector, lambda: selector(stage=0)):
        with pytest.raises(StageError, match="got no argument"):
            call()


def test_the_call_that_reaches_the_count_is_sampled(kind: type[PythonHotPath]) -> None:
    plain, group = _selector(kind), _selector(kind, stages=2)
    for selector, stage in ((plain, ()), (group, (1,))):
        winner = selector._settled[1]
        winner.sample_at = 2
        answers = [selector(*stage, 1, k=number) for number in range(6)]
        assert [number for number, answer in enumerate(answers) if answer == "sampled"] == [1, 4]
        assert winner.calls == 6
        assert selector.told == []
        assert selector.samples[0] == (winner, NEVER, 1, *(stage or (0,)), (1,), {"k": 1})


def test_a_detour_comes_before_a_sample(kind: type[PythonHotPath]) -> None:
    selector = _selector(kind)
    selector._settled[1].sample_at = 0
    detours.append(None)
    try:
        assert selector(1) == "long way"
    finally:
        detours.remove(None)
    assert selector(1) == "sampled"


def test_an_error_of_a_sampled_call_passes_unchanged(kind: type[PythonHotPath]) -> None:
    class Fails(type(_selector(kind))):  # type: ignore[misc]  # a class made by a function
        def _sampled(self, *args: Any) -> Any:
            raise KeyError("mine")

    selector = Fails()
    selector.get_problem_size, selector._settled = (
        _first,
        {1: _winner(kind, _answers_itself, sample_at=1)},
    )
    with pytest.raises(KeyError, match="mine"):
        selector(1)
    assert selector._settled[1].sample_at == NEVER


def test_a_detour_takes_the_long_way(kind: type[PythonHotPath]) -> None:
    plain, group = _selector(kind), _selector(kind, stages=2)
    detours.append(None)
    try:
        assert plain(1) == group(1, 1) == "long way"
    finally:
        detours.remove(None)
    assert plain.told == [(1, 0, (1,), {})]
    assert group.told == [(1, 1, (1,), {})]
    assert plain._settled[1].calls == group._settled[1].calls == 0
    assert plain(1) == ("winner", (1,), {})


@pytest.mark.parametrize(
    "error",
    [TypeError("own"), KeyError(1), AttributeError("x"), KeyboardInterrupt(), StopIteration()],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_a_winner_that_raises_is_called_once(
    kind: type[PythonHotPath], error: BaseException, grouped: bool
) -> None:
    calls = []

    def fails(*args: Any) -> None:
        calls.append(args)
        raise error

    selector = _selector(kind, stages=2 * grouped, _settled={1: _winner(kind, fails)})
    with pytest.raises(type(error)) as caught:
        selector(*([0] if grouped else []), 1)
    assert caught.value is error
    assert error.__cause__ is None
    assert calls == [(1,)]
    assert selector.told == []
    assert selector._settled[1].calls == 1


@pytest.mark.parametrize("grouped", [False, True])
def test_errors_of_the_problem_function_pass_unchanged(
    kind: type[PythonHotPath], grouped: bool
) -> None:
    error = TypeError("in the problem function")

    def fails(*args: Any) -> None:
        raise error

    selector = _selector(kind, stages=2 * grouped, get_problem_size=fails)
    with pytest.raises(TypeError, match="in the problem function") as caught:
        selector(0, 1)
    assert caught.value is error
    assert selector.told == []


@pytest.mark.parametrize("grouped", [False, True])
def test_a_problem_that_is_not_hashable(kind: type[PythonHotPath], grouped: bool) -> None:
    selector = _selector(kind, stages=2 * grouped, get_problem_size=lambda *args: [3])
    outer = RuntimeError("being handled by the caller")
    try:
        raise outer
    except RuntimeError:
        with pytest.raises(ProblemError, match=r"'contract'.*\[3\]") as caught:
            selector(0, 1)
    cause = caught.value.__cause__
    assert isinstance(cause, TypeError)
    assert caught.value.__context__ is cause
    assert caught.value.__suppress_context__
    assert cause.__context__ is outer
    assert selector.told == []


def test_other_errors_of_a_look_up_pass_unchanged(kind: type[PythonHotPath]) -> None:
    class Odd:
        def __hash__(self) -> int:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _selector(kind)(Odd())


def test_what_is_settled_may_be_swapped_meanwhile(kind: type[PythonHotPath]) -> None:
    class Swaps:
        """While it is compared with a key, the dict that holds the key is let go."""

        def __init__(self, selector: Any) -> None:
            self.selector = selector

        def __hash__(self) -> int:
            return hash(1)

        def __eq__(self, other: object) -> bool:
            self.selector._settled = {}
            gc.collect()
            return other == 1

    selector = _selector(kind)
    problem = Swaps(selector)
    assert selector(problem) == ("winner", (problem,), {})
    assert selector(1) == "long way"
    selector._settled = {1: _winner(kind, _second_stage)}
    assert selector(1) == ("second", (1,), {})


def test_a_winner_may_remove_itself(kind: type[PythonHotPath]) -> None:
    selector = _selector(kind)

    def leaves(*args: Any) -> str:
        selector._settled = {}
        selector.get_problem_size = lambda *args: "other"
        gc.collect()
        return "left"

    selector._settled = {1: _winner(kind, leaves)}
    del leaves
    assert selector(1) == "left"
    assert selector(1) == "long way"
    assert selector.told == [("other", 0, (1,), {})]


def test_threads_share_a_selector_whose_winners_change(kind: type[PythonHotPath]) -> None:
    selector = _selector(kind)
    calls, failures = 3000, []

    def work() -> None:
        try:
            for number in range(calls):
                selector._settled = {1: _winner(kind, lambda value, number=number: number)}
                assert isinstance(selector(1), int)
        except BaseException as error:
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failures == []
    assert selector.told == []


def test_threads_count_every_call(kind: type[PythonHotPath]) -> None:
    selector = _selector(kind)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: [selector(1) for _ in range(3000)]) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert selector._settled[1].calls == 8 * 3000


def test_calls_may_nest_and_recurse(kind: type[PythonHotPath]) -> None:
    selector = _selector(kind, get_problem_size=lambda n: 1)
    selector._settled = {1: _winner(kind, lambda n: n if n == 0 else 1 + selector(n - 1))}
    assert selector(50) == 50
    selector._settled = {1: _winner(kind, lambda n: [selector(n)])}
    with pytest.raises(RecursionError):
        selector(1)
    selector._settled = {1: _winner(kind, selector)}
    with pytest.raises(RecursionError):
        selector(1)
    selector.get_problem_size = selector
    with pytest.raises(RecursionError):
        selector(1)


@pytest.mark.parametrize("function", [abs, (5).__add__, complex, lambda x: x, "a{}".format])
def test_winners_of_every_kind(kind: type[PythonHotPath], function: Callable[..., Any]) -> None:
    selector, group = (
        _selector(kind, _settled={1: _winner(kind, function)}),
        _selector(kind, stages=5),
    )
    group._settled = {1: _winner(kind, *[_answers_itself] * 4, function)}
    for _ in range(20):
        assert selector(1) == group(4, 1) == function(1)
        assert selector(*(1,)) == group(*(4, 1)) == function(1)


def test_a_bound_method_with_many_arguments(kind: type[PythonHotPath]) -> None:
    class Keeper:
        def give(self, *args: Any, **kwargs: Any) -> Any:
            return self, args, kwargs

    keeper = Keeper()
    group = _selector(kind, stages=2, _settled={1: _winner(kind, keeper.give)})
    args = (1, *range(20))
    assert group(0, *args, z=1) == (keeper, args, {"z": 1})
    assert group(0, 1, 2, z=1) == (keeper, (1, 2), {"z": 1})


def test_a_subclass_may_override_the_call(kind: type[PythonHotPath]) -> None:
    class Doubles(type(_selector(kind))):  # type: ignore[misc]  # a class made by a function
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return [super().__call__(*args, **kwargs)] * 2

    selector = Doubles()
    selector.told, selector.get_problem_size, selector._settled = (
        Told(),
        _first,
        {1: _winner(kind, _answers_itself)},
    )
    assert selector(1, k=3) == [("winner", (1,), {"k": 3})] * 2
    assert selector(9) == ["long way"] * 2


def test_a_call_that_the_class_gets_later_counts(kind: type[PythonHotPath]) -> None:
    selector = _selector(kind)
    assert selector(1, k=2) == ("winner", (1,), {"k": 2})
    type(selector).__call__ = lambda self, *args, **kwargs: ("later", args, kwargs)
    assert selector(1, k=2) == ("later", (1,), {"k": 2})


def test_attributes_read_back(kind: type[PythonHotPath]) -> None:
    selector = _selector(kind)
    winner = _winner(kind, abs, len, sample_at=9)
    assert (winner.functions, winner.calls, winner.sample_at) == ((abs, len), 0, 9)
    settled = {3: winner}
    selector._settled, selector.get_problem_size, selector._stage_count = settled, abs, 2
    assert selector._settled is settled
    assert selector.get_problem_size is abs
    assert selector._stage_count == 2
    del selector.get_problem_size
    with pytest.raises(AttributeError, match="get_problem_size"):
        selector(0, 1)


def test_a_selector_that_was_never_filled_raises(kind: type[PythonHotPath]) -> None:
    with pytest.raises(AttributeError):
        kind()(1)


def test_copies_and_pickles_answer_alike(kind: type[PythonHotPath]) -> None:
    importable = Importable if kind is PythonHotPath else NativeImportable
    selector = importable()
    selector.name = "copied"
    selector.get_problem_size, selector._settled = _first, {1: _winner(kind, _answers_itself)}
    for again in (
        copy.copy(selector),
        copy.deepcopy(selector),
        pickle.loads(pickle.dumps(selector)),
    ):
        assert type(again) is importable
        assert again(1, 2) == ("winner", (1, 2), {})
        assert again.name == "copied"
    assert copy.copy(selector)._settled is selector._settled


@pytest.mark.parametrize("through", ["_settled", "get_problem_size", "attribute", "nothing"])
def test_a_dropped_selector_is_freed(kind: type[PythonHotPath], through: str) -> None:
    selector = _selector(kind)
    selector(1)
    if through == "_settled":
        selector._settled = {1: _winner(kind, selector)}
    elif through == "get_problem_size":
        selector.get_problem_size = lambda *args, me=selector: 1
    elif through == "attribute":
        selector.me = selector
    reference = weakref.ref(selector)
    kept = weakref.ref(type(selector))
    gc.disable()
    try:
        del selector
        assert (reference() is None) == (through == "nothing")
    finally:
        gc.enable()
    gc.collect()
    assert reference() is None
    assert kept() is None


@pytest.mark.parametrize("grouped", [False, True])
def test_calls_leak_nothing(kind: type[PythonHotPath], grouped: bool) -> None:
    def winner(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            raise ValueError
        return args

    problem, unsettled, keyword = object(), object(), object()
    selector = _selector(
        kind, stages=2 * grouped, _settled={problem: _winner(kind, *[winner] * (1 + grouped))}
    )
    stage = (0,) if grouped else ()
    mistakes: list[tuple[Any, ...]] = [(problem, 1), ([],)]

    def calls(times: int) -> None:
        for _ in range(times):
            selector(*stage, problem)
            selector(*stage, problem, k=keyword)
            selector(*stage, unsettled, k=keyword)
            selector._settled[problem].sample_at = 0
            selector(*stage, problem, k=keyword)
            selector.told.clear()
            selector.samples.clear()
            for wrong in mistakes:
                with suppress(ValueError, ProblemError):
                    selector(*stage, *wrong, k=keyword)
            type(selector).__call__(selector, *stage, problem, k=keyword)

    watched = (
        problem,
        unsettled,
        keyword,
        winner,
        selector,
        selector._settled,
        selector._settled[problem],
        _first,
    )
    calls(10)
    gc.collect()
    counts = [sys.getrefcount(one) for one in watched]
    objects = len(gc.get_objects())
    tracemalloc.start()
    try:
        calls(200)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        calls(5000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert [sys.getrefcount(one) for one in watched] == counts
    assert len(gc.get_objects()) - objects < 100
    # Less than one pointer a call: of so many that 5 KB of the interpreter's own do not look like a
    # leak.
    assert grown < 5000 * 8


def _group(kind: type[PythonHotPath], *, stages: int = 2) -> tuple[Any, Any]:
    selector = _selector(kind, stages=stages)
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
    winner = NativeWinner((_answers_itself, _second_stage))
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


TIMED = {"python": timed_in_python, "native": native_timed}


@pytest.fixture(params=sorted(TIMED))
def timed(request: pytest.FixtureRequest) -> Any:
    found = TIMED[request.param]
    if found is None:
        pytest.skip("the native extension was not built")
    return found


def _ticks(*times: float) -> Callable[[], float]:
    return iter(times).__next__


def test_a_timed_call_gives_its_seconds_and_result(timed: Any) -> None:
    trial, inside = Trial(None, 1, 0, None), []

    def called(*args: Any, **kwargs: Any) -> Any:
        inside.append((current_trial.get(), list(detours), trial.done))
        return args, kwargs

    assert timed(detours, current_trial, trial, _ticks(1.0, 3.5), called, (1, 2), {"k": 3}) == (
        2.5,
        ((1, 2), {"k": 3}),
    )
    assert timed(detours, current_trial, trial, _ticks(1, 3), called, (), {}) == (2, ((), {}))
    assert inside[0] == (trial, [trial], False)
    assert (trial.done, current_trial.get(), detours) == (True, None, [])


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("fails", ["function", "clock at the start", "clock at the end"])
def test_a_timed_call_that_fails_leaves_nothing_open(
    timed: Any, error: BaseException, fails: str
) -> None:
    trial, calls = Trial(None, 1, 0, None), []

    def step(name: str) -> float:
        calls.append(name)
        if fails == name:
            raise error
        return 1.0

    clock = iter(("clock at the start", "clock at the end"))
    with pytest.raises(type(error)) as caught:
        timed(
            detours,
            current_trial,
            trial,
            lambda: step(next(clock)),
            lambda: step("function"),
            (),
            {},
        )
    assert caught.value is error
    assert calls[-1] == fails
    assert (trial.done, current_trial.get(), detours) == (True, None, [])


def test_a_timed_call_inside_another_leaves_the_outer_one(timed: Any) -> None:
    outer, inner = Trial(None, 1, 0, None), Trial(None, 2, 0, None)
    seen = []

    def inside() -> None:
        timed(detours, current_trial, inner, _ticks(1.0, 2.0), seen.append, (1,), {})
        seen.append((current_trial.get(), list(detours), inner.done, outer.done))

    timed(detours, current_trial, outer, _ticks(1.0, 2.0), inside, (), {})
    assert seen == [1, (outer, [outer], True, False)]


def test_a_timed_call_that_ends_elsewhere_or_was_forgotten_harms_nothing(timed: Any) -> None:
    trial, other = Trial(None, 1, 0, None), object()

    def called() -> None:
        detours[:] = [other]  # as a child process does, and another trial has begun since

    assert timed(detours, current_trial, trial, _ticks(1.0, 2.0), called, (), {}) == (1.0, None)
    assert detours == [other]
    detours.clear()


def test_a_timed_call_leaks_nothing(timed: Any) -> None:
    trial, answer = Trial(None, 1, 0, None), object()
    before = [sys.getrefcount(one) for one in (trial, answer, detours, current_trial)]
    for _ in range(1000):
        timed(detours, current_trial, trial, _ticks(1.0, 2.0), lambda: answer, (), {})
        with pytest.raises(ZeroDivisionError):
            timed(detours, current_trial, trial, _ticks(1.0, 2.0), lambda: 1 / 0, (), {})
    assert [sys.getrefcount(one) for one in (trial, answer, detours, current_trial)] == before


def test_the_native_timed_call_refuses_other_arguments() -> None:
    if native_timed is None:
        pytest.skip("the native extension was not built")
    for wrong in (
        (),
        (detours, current_trial, None, int, int, [], {}),
        ((), current_trial, None, int, int, (), {}),
    ):
        with pytest.raises(TypeError, match="timed: expected"):
            native_timed(*wrong)
    with pytest.raises(TypeError):
        native_timed(detours, None, None, int, int, (), {})


@pytest.mark.parametrize(("value", "name"), [("1", "PythonHotPath"), ("", "NativeHotPath")])
def test_an_environment_variable_chooses(value: str, name: str) -> None:
    if NativeHotPath is None:
        pytest.skip("the native extension was not built")
    program = "from bestof.selection.hot_path import HotPath; print(HotPath.__name__)"
    environment = {**os.environ, "BESTOF_PURE_PYTHON": value}
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert answer.stdout.strip() == name


def test_the_native_type_refuses_what_it_could_not_read_fast() -> None:
    if NativeHotPath is None:
        pytest.skip("the native extension was not built")
    selector = _selector(NativeHotPath)
    with pytest.raises(TypeError, match="_settled: expected a dict"):
        selector._settled = []
    with pytest.raises(TypeError, match="detours: expected a list; got tuple"):
        type("Wrong", (NativeHotPath,), {"detours": ()})()
    selector._settled = {1: None}
    with pytest.raises(TypeError, match="expected a Winner for a problem; got NoneType"):
        selector(1)
    assert NativeWinner is not None
    with pytest.raises(TypeError, match="must be tuple, not list"):
        NativeWinner([abs])  # type: ignore[arg-type]  # what is refused
