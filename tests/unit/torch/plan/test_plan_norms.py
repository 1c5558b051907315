"""Plans with norms of rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from plan_results import chosen_by, is_close, operations
from torch import Tensor, nn

import bestof.torch as bt


class Normed(nn.Module):
    """A norm of a product, and of a sum with it."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(24, 24), norm

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).reshape(2, 9, 24)
        found: Tensor = self.norm(x.sin() + y.reshape(18, 24).view(2, 9, 24))
        return found


class SpelledRms(nn.Module):
    """RMS norm as models of transformers spell it: in float32, whatever the dtype of the rest."""

    def __init__(self, *, scaled: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(24) + 0.5) if scaled else None

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype is torch.float64 else x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        normed = (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype)
        return normed if self.weight is None else self.weight * normed


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm(24),
        nn.LayerNorm(24, elementwise_affine=False),
        nn.LayerNorm(24, eps=1e-12, bias=False),
        nn.RMSNorm(24),
        SpelledRms(),
    ],
    ids=str,
)
def test_norms(norm: nn.Module) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for one in norm.parameters():
            one.add_(torch.rand_like(one))
    model, x = Normed(norm).eval(), torch.randn(2, 9, 24)
    plan = bt.optimize(model, x)
    assert operations(plan, x)[-1] == "row_norm"
    for name in ("native", "pytorch"):
        assert is_close(chosen_by(plan, name, x), model, x), name


class OffCentre(nn.Module):
    """A group norm of numbers whose mean is 100 of their standard deviations."""

    def __init__(self, part: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.norm, self.part = nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 8), part
        with torch.no_grad():
            self.conv.weight.mul_(0.1)
            nn.init.constant_(self.conv.bias, 10.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(self.part(F.gelu(self.conv(x))))
        return found


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda y: y[:, :8] + y[:, 8:],
    "slice": lambda y: y[:, :8],
    "chunk": lambda y: y.chunk(2, 1)[1],
    "crop": lambda y: y.reshape(-1, 8, 28, 28)[:, :, 3:20, 2:],
    "frames": lambda y: y.reshape(2, 2, 8, 28, 28).transpose(1, 2),
    "volume": lambda y: y[:, :8].unsqueeze(2),
}


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("part", PARTS)
def test_a_group_norm_off_centre_is_as_exact_as_the_models(
    part: str, last: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = OffCentre(PARTS[part]).eval()
    x = torch.randn(2, 3, 30, 30)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    plan = bt.optimize(model, x)
    with torch.no_grad():
        right, theirs = copy.deepcopy(model).double()(x.double()), model(x)
        got = plan(x)
        plan.save(tmp_path / "plan")
        loaded = bt.load(tmp_path / "plan")(x)
    # Each number, and their mean, err by a few roundings of the mean, which is 100 of the result.
    # PyTorch's norm in channels last errs by 2e-3, where the program asks for that layout.
    allowed = max(2 * rms(theirs - right), 8 * 100 * torch.finfo(torch.float32).eps)
    assert rms(got - right) <= allowed
    assert rms(loaded - right) <= allowed
    if not last:
        assert rms(theirs - right) <= 8 * 100 * torch.finfo(torch.float32).eps


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def test_a_norm_of_several_axes_stays() -> None:
    model, x = Normed(nn.LayerNorm((9, 24))).eval(), torch.randn(2, 9, 24)
    assert "row_norm" not in operations(bt.optimize(model, x), x)


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm(24),
        nn.LayerNorm(24, bias=False),
        nn.RMSNorm(24, eps=1e-6),
        SpelledRms(),
        SpelledRms(scaled=False),
    ],
    ids=str,
)
def test_norms_of_bfloat16(norm: nn.Module) -> None:
    """Five roundings at most, of numbers of about one size, each of 2^-8 of a number."""
    torch.manual_seed(0)
    model, x = Normed(norm).eval().bfloat16(), torch.randn(2, 9, 24).bfloat16()
    plan = bt.optimize(model, x)
    assert operations(plan, x)[-1] == "row_norm"
    with torch.no_grad():
        right = copy.deepcopy(model).double()(x.double())
    for name in ("native", "pytorch"):
        error = torch.linalg.vector_norm(chosen_by(plan, name, x)(x).double() - right)
        assert error <= 5 * 2**-8 * torch.linalg.vector_norm(right), name


class Widened(nn.Module):
    """An RMS norm whose result stays float32: no norm of bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) + 1.0


def test_a_norm_that_leaves_bfloat16_is_of_float32() -> None:
    model, x = Normed(Widened()).eval().bfloat16(), torch.randn(2, 9, 24).bfloat16()
    found = bt.optimize(model, x)(x)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, model(x), rtol=2**-8, atol=2**-8)


def test_a_norm_of_bfloat16_without_epsilon_stays_pytorchs() -> None:
    model, x = Normed(nn.RMSNorm(24)).eval().bfloat16(), torch.randn(2, 9, 24).bfloat16()
    assert "row_norm" not in operations(bt.optimize(model, x), x)
