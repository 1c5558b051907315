"""Small networks, policies that try every alternative, and the comparison with plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import bestof.torch as integration
from bestof.selection.policies import Fixed, Rounds
from bestof.torch.dispatch.overrides import convolution_override

CALLS = 12  # enough for `EachInTurn` to try seven alternatives; enough for Race to drop some


class EachInTurn:
    """A search without an end, that asks for the alternatives in turn: every call is a trial of
    another one."""

    def __init__(self, count: int) -> None:
        self._remaining = list(range(count))
        self._asked = 0
        self.winner = None

    def ask(self) -> int | None:
        self._asked += 1
        return self._remaining[self._asked % len(self._remaining)]

    def tell(self, position: int, seconds: float) -> None:
        pass

    def drop(self, position: int) -> None:
        self._remaining.remove(position)


class EachInTurnPolicy:
    def start(self, alternatives: Sequence[str]) -> EachInTurn:
        return EachInTurn(len(alternatives))


class Prefer:
    """Decides for this name where the selector has it, else for the first."""

    def __init__(self, name: str) -> None:
        self.name = name

    def start(self, alternatives: Sequence[str]) -> Any:
        return (
            Fixed(self.name).start(alternatives)
            if self.name in alternatives
            else Rounds(1).start(alternatives)
        )


def net(channels: int = 3, **options: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1, **options),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1, bias=False, groups=2, **options),
        nn.BatchNorm2d(8, **options),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, dilation=2, padding=2, **options),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12 * 4 * 4, 5, **options),
    )


def step(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and gradients of a step without its update."""
    model.zero_grad()
    out = model(x)
    out.square().mean().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def assert_same(got: Any, expected: Any) -> None:
    """Equal within the largest error that any alternative promises (5e-5 of the rms, Winograd
    F(4)), in float64 within what sums in another order come to, in 16 bits within a unit in the
    last place for each of the six convolutions between an input and a gradient; shapes, dtypes and
    strides equal."""
    if not isinstance(expected, Tensor):
        assert type(got) is type(expected)
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
        return
    tolerances = {
        torch.float32: 5e-5,
        torch.complex64: 5e-5,
        torch.float64: 1e-13,
        torch.bfloat16: 6 * 2**-8,
        torch.float16: 6 * 2**-11,
    }
    tolerance = tolerances.get(expected.dtype, 0.0)
    scale = expected.abs().max().item() if expected.numel() else 0.0
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, rtol=0, atol=scale * tolerance, equal_nan=True)


def assert_unchanged(compute: Callable[[], Any], calls: int = CALLS) -> None:
    """The same result with tuning on, call for call, and again after it was off."""
    expected = compute()
    with integration.enabled():
        for _ in range(calls):
            assert_same(compute(), expected)
    assert_same(compute(), expected)


def calls_seen() -> int:
    override = convolution_override()
    return (
        0
        if override is None
        else sum(sum(counts.totals().values()) for _, counts in override.layer.passes)
    )
