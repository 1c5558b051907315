"""`check=` and alternatives that change the arguments of the caller."""

from __future__ import annotations

import asyncio
import warnings
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bestof import BestOf
from bestof.errors import BestofWarning
from bestof.selection.call.snapshot import Snapshot


def double(values: Any) -> Any:
    return values * 2


def double_in_place(values: Any) -> Any:
    values *= 2
    return values


def selector(*alternatives: Callable[..., Any], check: Any = 1e-5) -> BestOf:
    now = iter(range(1_000_000))
    return BestOf(
        "arguments",
        [(f"{position} {one.__name__}", one) for position, one in enumerate(alternatives)],
        lambda *args, **kwargs: 0,
        check=check,
        store="off",
        policy="rounds:rounds=3",
        clock=lambda: float(next(now)),
    )


def warned(call: Callable[[], object], text: str) -> int:
    """Return how many warnings a function gives; each has this text."""
    with pytest.warns(BestofWarning, match=text) as told:
        call()
    return len(told)


MADE = [
    lambda: np.ones(3),
    lambda: torch.ones(3),
    lambda: np.ma.masked_array(np.ones(3), [True, False, False]),
]


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("check", [1e-5, lambda expected, got: True])
def test_one_that_changes_an_argument_is_out_and_the_argument_as_before(
    made: Callable[[], Any], check: Any
) -> None:
    it = selector(double, double_in_place, check=check)

    def call() -> None:
        for _ in range(60):
            values = made()
            assert float(it(values)[1]) == 2.0
            assert float(values[1]) == 1.0

    assert warned(call, "it changed the argument 0, which the first") == 1
    assert it.explain(made()).decision == "0 double"


@pytest.mark.parametrize("made", MADE)
def test_one_that_leaves_what_the_first_changes_is_out(made: Callable[[], Any]) -> None:
    it = selector(double_in_place, double)

    def call() -> None:
        for _ in range(60):
            values = made()
            assert it(values) is values
            assert float(values[1]) == 2.0

    assert warned(call, "it left the argument 0, which the first") == 1


@pytest.mark.parametrize("made", MADE)
def test_all_may_change_an_argument_alike(made: Callable[[], Any]) -> None:
    def add_in_place(values: Any) -> Any:
        values += 1
        return values

    it = selector(double_in_place, add_in_place)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(60):
            values = made()
            assert it(values) is values
            assert float(values[1]) == 2.0


def test_another_value_in_an_argument_is_wrong() -> None:
    def right(values: dict[str, list[float]]) -> int:
        values["found"] = [1.0]
        return 0

    def wrong(values: dict[str, list[float]]) -> int:
        values["found"] = [1.5]
        return 0

    it = selector(right, wrong)

    def call() -> None:
        for _ in range(20):
            values: dict[str, list[float]] = {}
            it(values)
            assert values == {"found": [1.0]}

    assert warned(call, "it changed the argument 0 to another value: .*off by") == 1


def test_keywords_and_what_lies_inside() -> None:
    def right(*, pairs: tuple[list[Any], ...]) -> int:
        return len(pairs)

    def wrong(*, pairs: tuple[list[Any], ...]) -> int:
        pairs[0][0][...] = np.nan
        pairs[1].append(3)
        return len(pairs)

    it = selector(right, wrong)

    def call() -> None:
        for _ in range(20):
            inner = np.arange(3.0)
            pairs: tuple[list[Any], ...] = ([inner], [])
            it(pairs=pairs)
            assert pairs[0][0] is inner
            assert inner.tolist() == [0.0, 1.0, 2.0]
            assert pairs[1] == []

    assert warned(call, "it changed the argument 'pairs', which the first") == 1


def test_one_that_changes_an_argument_and_fails_leaves_it_as_before() -> None:
    def broken(values: Any) -> Any:
        values *= 2
        raise OSError("half way")

    it = selector(double, broken)

    def call() -> None:
        for _ in range(20):
            values = np.ones(3)
            assert it(values).tolist() == [2.0] * 3
            assert values.tolist() == [1.0] * 3

    assert warned(call, "half way") == 1


def test_coroutines_are_compared_too() -> None:
    async def right(values: Any) -> Any:
        await asyncio.sleep(0)
        return values * 2

    async def wrong(values: Any) -> Any:
        await asyncio.sleep(0)
        values *= 2
        return values

    async def run() -> None:
        it = selector(right, wrong)
        for _ in range(20):
            values = np.ones(3)
            assert (await it(values)).tolist() == [2.0] * 3
            assert values.tolist() == [1.0] * 3

    assert warned(lambda: asyncio.run(run()), "it changed the argument 0") == 1


def test_gradients_flow_through_what_was_put_back() -> None:
    """Putting an argument back leaves the graph of gradients as it was."""

    def in_place(values: torch.Tensor) -> torch.Tensor:
        values.detach().mul_(3)
        return values * 2

    it = selector(double, in_place)
    weights = torch.ones(3, requires_grad=True)

    def call() -> None:
        for _ in range(10):
            (it(weights) * weights).sum().backward()

    assert warned(call, "wrong result: result: off by 2") == 1
    assert weights.detach().tolist() == [1.0] * 3
    assert weights.grad is not None
    assert weights.grad.tolist() == [40.0] * 3


def test_a_result_of_another_type_is_out_at_once() -> None:
    def half(values: Any) -> Any:
        return (values * 2).astype(np.float16)

    it = selector(double, half)
    with pytest.warns(BestofWarning, match="expected the dtype float64; got float16"):
        assert all(it(np.ones(3)).dtype == np.float64 for _ in range(60))


def test_a_result_without_its_graph_is_out_at_once() -> None:
    def cut(values: torch.Tensor) -> torch.Tensor:
        return values.detach() * 2

    it = selector(double, cut)

    def call() -> None:
        for _ in range(20):
            values = torch.ones(3, requires_grad=True)
            it(values).sum().backward()
            assert values.grad is not None

    assert warned(call, "expected the requires_grad True; got False") == 1


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, [2]], lambda v: v[1].append(3)),
        ([1.0], lambda v: v.__setitem__(0, 2.0)),
        (deque([1]), lambda v: v.appendleft(0)),
        ({"a": {1}}, lambda v: v["a"].add(2)),
        ({"a": 1, "b": 2}, lambda v: v.update(a=v.pop("a"))),
        (bytearray(b"ab"), lambda v: v.__setitem__(0, 0)),
        (array("d", [float("nan"), 1.0]), lambda v: v.append(2.0)),
        (np.array([np.nan, 1.0]), lambda v: v.__setitem__(0, 1.0)),
        (np.array([1, "a"], object), lambda v: v.__setitem__(1, "b")),
        (np.zeros((2, 3)), lambda v: setattr(v, "shape", (3, 2))),
        (torch.zeros(2, 3), lambda v: v.resize_(4, 4).fill_(1)),
        (torch.zeros(2), lambda v: setattr(v, "data", torch.ones(2).double())),
    ],
)
def test_a_change_is_seen_and_undone(value: Any, change: Callable[[Any], object]) -> None:
    text = repr(value)
    before = Snapshot((value,), {})
    assert before.changed() == []
    change(value)
    assert before.changed() == [0]
    before.put_back()
    assert before.changed() == []
    assert repr(value) == text


def test_what_refuses_to_be_copied_or_compared_is_left_out() -> None:
    class Odd:
        shape, dtype = (1,), "odd"

        def __setitem__(self, key: object, value: object) -> None:
            pass

        def copy(self) -> Odd:
            return Odd()

        def __eq__(self, other: object) -> bool:
            raise OSError("no")

        __hash__ = None  # type: ignore[assignment]

    around: list[Any] = [Odd()]
    around.append(around)
    assert Snapshot((around,), {"x": (open, lambda: 0)}).changed() == []
