"""`bestof bench conv`: what it measures, by a clock that the test winds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bestof.torch
from bestof.bench.convolution import alternatives as conv
from bestof.bench.convolution.alternatives import measure_conv
from bestof.errors import InvalidArgument, TorchError
from bestof.torch.backends.device import CPU
from bestof.torch.ops.convolution.conv2d import Conv2d
from bestof.torch.ops.convolution.direction import DIRECTIONS
from bestof.torch.ops.convolution.passes import PASSES
from bestof.torch.ops.row import Row


class Clock:
    """Stands still but for what fakes add."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fakes(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A catalogue of forward alternatives that take 4, 2, ... seconds; gives the order in which
    they were called.
    """
    order: list[str] = []

    def take(name: str, seconds: list[float]) -> Callable[..., torch.Tensor]:
        left = iter(seconds)

        def function(*_: object) -> torch.Tensor:
            order.append(name)
            clock.now += next(left)
            return torch.ones(())

        return function

    def fail(*_: object) -> torch.Tensor:
        order.append("fails")
        raise RuntimeError("no\nmemory")

    def always(_: object) -> bool:
        return True

    rows = (
        Row("as is", take("as is", [99, 4, 4, 4]), always),
        Row("fast", take("fast", [99, 1, 2, 3]), always),
        Row("absent", fail, lambda _: False),
        Row("fails", fail, always),
    )
    catalogue = Conv2d(CPU, rows)
    monkeypatch.setattr(conv, "PASSES", (catalogue,))
    monkeypatch.setattr(conv, "FORWARD", catalogue)
    return order


def test_alternatives_are_called_in_turn_and_the_first_call_does_not_count(
    fakes: list[str], clock: Clock
) -> None:
    (times,) = measure_conv("i1x5x5,k1x3x3", ["forward"], repeats=3, clock=clock)
    assert fakes == ["as is", "fast", "fails", *["as is", "fast"] * 3]
    assert [(one.name, one.seconds, one.ratio) for one in times.alternatives] == [
        ("as is", 4.0, 1.0),
        ("fast", 2.0, 2.0),
        ("absent", None, None),
        ("fails", None, None),
    ]
    assert [one.spread for one in times.alternatives] == [0.0, 0.5, None, None]
    assert [one.chosen for one in times.alternatives] == [False, True, False, False]
    assert [one.reason for one in times.alternatives] == [
        None,
        None,
        None,
        "RuntimeError: no memory",
    ]


def test_every_alternative_of_the_catalogues_has_a_row() -> None:
    results = measure_conv("i4x7x6,k4x3x3,b2,s2,p1,g2", repeats=1, threads=1)
    assert tuple(one.name for one in results) == DIRECTIONS
    for result, catalogue in zip(results, PASSES, strict=True):
        assert [row.name for row in result.alternatives] == [row.name for row in catalogue.rows]
        assert sum(row.chosen for row in result.alternatives) == 1
        assert result.threads == 1
        for row, alternative in zip(result.alternatives, catalogue.rows, strict=True):
            assert row.reason is None
            assert row.spread is None  # of one sample
            assert (row.seconds is not None) or not row.chosen, alternative.name
    assert results[0].alternatives[4].seconds is None  # fft takes no stride


def test_channels_last_is_what_the_problem_says() -> None:
    (forward,) = measure_conv("i4x7x6,k4x3x3,b2", ["forward"], repeats=1, channels_last=True)
    assert forward.problem.endswith("input=channels_last weight=channels_last")
    (gradient,) = measure_conv(
        "i4x7x6,k4x3x3,b2", ["weight gradient"], repeats=1, channels_last=True
    )
    assert gradient.problem.endswith("gradient=channels_last")


def test_pytorch_as_it_is_is_measured_also_while_tuning_is_on() -> None:
    with bestof.torch.enabled():
        before = bestof.torch.summary()
        measure_conv("i2x5x5,k2x3x3", repeats=1)
        assert bestof.torch.summary() == before
    bestof.torch.disable()


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    measure_conv("i1x5x5,k1x3x3", ["forward"], repeats=1, threads=before + 1)
    assert torch.get_num_threads() == before
    with pytest.raises(InvalidArgument):
        measure_conv("i1x5x5", threads=before + 1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("notation", "options", "told"),
    [
        ("i1x5x5", {}, "'k' is missing"),
        ("i1x5x5,k1x9x9", {}, "exceeds the padded image"),
        ("i1x5x5,k1x3x3", {"passes": ["backward"]}, "there is no pass 'backward'"),
        ("i1x5x5,k1x3x3", {"repeats": 0}, "repeats: expected at least 1; got 0"),
        ("i1x5x5,k1x3x3", {"threads": 0}, "threads: expected at least 1; got 0"),
    ],
)
def test_what_cannot_be_measured(notation: str, options: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        measure_conv(notation, **options)  # type: ignore[arg-type]


def test_operands_beyond_the_memory() -> None:
    with pytest.raises(TorchError, match="the operands do not fit into the memory"):
        measure_conv("i1000000x100000x100000,k1x3x3", repeats=1)
