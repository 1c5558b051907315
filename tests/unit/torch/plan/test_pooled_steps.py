"""Convolution steps that pool their results."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bestof.torch as bt


class Layers(nn.Module):
    """A convolution, an activation and a pooling, and what else the test wants."""

    def __init__(self, activation: nn.Module, pool: nn.Module, *, twice: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(5, 40, 3, padding=1)
        self.activation, self.pool, self.twice = activation, pool, twice

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        y = self.activation(self.conv(x))
        return (self.pool(y), y + 1) if self.twice else self.pool(y)


def _plan(model: nn.Module, x: Tensor) -> bt.OptimizedModel:
    return bt.optimize(model.eval(), x)


@pytest.mark.parametrize(
    "activation", [nn.Identity(), nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2)], ids=str
)
@pytest.mark.parametrize("size", [(16, 16), (13, 15), (2, 3)], ids=str)
def test_by_every_algorithm(activation: nn.Module, size: tuple[int, int]) -> None:
    model, x = Layers(activation, nn.MaxPool2d(2)), torch.randn(3, 5, *size)
    plan = _plan(model, x)
    wanted = model(x)
    (step,) = [one for one in plan.explain(x).steps if "max 2x2" in one.problem]
    torch.testing.assert_close(plan(x), wanted, rtol=1e-4, atol=1e-5)
    binding = next(iter(plan._programs.values()))[2].borrow()
    one = next(step.convolution for step in binding.steps if step.convolution is not None)
    assert step.problem == str(one.problem)
    binding.slots[0] = x
    for run in binding.runs[: [s.convolution for s in binding.steps].index(one)]:
        run()
    for algorithm in (
        "onednn",
        "direct",
        "convgemm",
        "winograd2",
        "winograd4",
        "winograd2 unpacked",
    ):
        one.placed.out.fill_(torch.nan)
        one.runner(algorithm)()
        torch.testing.assert_close(
            one.placed.out,
            wanted,
            rtol=1e-4,
            atol=1e-5,
            msg=lambda text, name=algorithm: f"{name}: {text}",
        )


@pytest.mark.parametrize(
    "model",
    [
        Layers(nn.SiLU(), nn.MaxPool2d(2)),
        Layers(nn.LeakyReLU(-0.5), nn.MaxPool2d(2)),
        Layers(nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        Layers(nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)),
        Layers(nn.ReLU(), nn.MaxPool2d(2, stride=1)),
        Layers(nn.ReLU(), nn.AvgPool2d(2)),
        Layers(nn.ReLU(), nn.MaxPool2d(2), twice=True),
    ],
    ids=["falls", "falls for less", "3x3", "ceil", "overlaps", "average", "read twice"],
)
def test_others_are_pooled_apart(model: Layers) -> None:
    x = torch.randn(2, 5, 13, 13)
    plan = _plan(model, x)
    assert not any("max 2x2" in step.problem for step in plan.explain(x).steps)
    torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-5)


def test_it_is_saved_and_loaded() -> None:
    model, x = Layers(nn.ReLU(), nn.MaxPool2d(2)), torch.randn(2, 5, 18, 18)
    plan, file = _plan(model, x), io.BytesIO()
    plan.save(file)
    again = bt.load(io.BytesIO(file.getvalue()))
    assert [step.problem for step in again.explain().steps] == [
        step.problem for step in plan.explain(x).steps
    ]
    assert torch.equal(again(x), plan(x))
    assert torch.equal(plan.release()(x), again(x))


def test_the_pooled_result_lies_apart_from_what_the_step_reads() -> None:
    # 40 channels @12 are pooled to 40 @6, which would fit where the convolution's input lies.
    model = nn.Sequential(
        nn.Conv2d(3, 40, 3, padding=1),
        nn.Conv2d(40, 40, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Conv2d(40, 3, 1),
    ).eval()
    x = torch.randn(2, 3, 12, 12)
    plan = _plan(model, x)
    binding = next(iter(plan._programs.values()))[2].borrow()
    one = next(
        s.convolution
        for s in binding.steps
        if s.convolution is not None and s.convolution.problem.pooled
    )
    begin, end = one.placed.out.data_ptr(), one.placed.out.data_ptr() + one.placed.out.nbytes
    for other in (one.placed.x, one.placed.aside):
        assert end <= other.data_ptr() or other.data_ptr() + other.nbytes <= begin
    torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pools", [lambda x: x.mean((2, 3)), lambda x: F.adaptive_avg_pool2d(x, 1)])
def test_the_average_of_a_large_image_is_exact(pools: Callable[[Tensor], Tensor]) -> None:
    """In one chain of sums, the average of 512 x 512 equal numbers was off by 0.25 %."""

    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(1, 8, 1)
            nn.init.ones_(self.layer.weight)
            nn.init.zeros_(self.layer.bias)

        def forward(self, x: Tensor) -> Tensor:
            return pools(torch.relu(self.layer(x)))

    model = Averaged().eval()
    plan = bt.optimize(model, torch.randn(1, 1, 512, 512), tune=False)
    with torch.no_grad():
        found = plan(torch.full((1, 1, 512, 512), 0.1))
    # Blocks of 64 x 64 are summed in one chain at most: 4096 roundings of 2^-24 each.
    assert (found - 0.1).abs().max() <= 0.1 * 2**-12
