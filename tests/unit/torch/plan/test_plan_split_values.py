"""Plans of values that are parts of one product."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from plan_results import chosen_by, is_close
from torch import Tensor, nn

import bestof.torch as bt


class Split(nn.Module):
    """One product for q, k and v, whose results are views of one value."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(24, 72), nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.view(2, 9, 4, 6).transpose(1, 2) for one in self.all(x).split(24, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.out(y.transpose(1, 2).reshape(2, 9, 24))
        return found


def test_split_values_are_read_where_they_lie() -> None:
    """The parts, and the heads of them, are views that are bound once."""
    torch.manual_seed(0)
    model, x = Split().eval(), torch.randn(2, 9, 24)
    plan = chosen_by(bt.optimize(model, x), "native", x)
    assert is_close(plan, model, x)
    steps = [step.problem.split()[0] for step in plan.explain(repeats=1).steps]
    linear = "i24x1x18,k72x1x1,b1,s1,p0,d1,g1"
    assert steps == [linear, "attention", linear.replace("k72", "k24")]


class Returned(nn.Module):
    """Views of the arena are outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.linear(x).split(8, dim=1))


def test_split_outputs_are_the_callers() -> None:
    torch.manual_seed(0)
    model, x = Returned().eval(), torch.randn(2, 24)
    plan = bt.optimize(model, x)
    first = plan(x)
    kept = [one.clone() for one in first]
    plan(x + 1.0)
    assert all(map(torch.equal, first, kept))


class Chunks(nn.Module):
    """A part of a value changes in place, and the value with it."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2.0
        y.split(4, dim=1)[0].add_(1.0)
        return y


def test_a_change_through_a_part_is_seen() -> None:
    x = torch.randn(2, 8)
    torch.testing.assert_close(bt.optimize(Chunks().eval(), x)(x), Chunks()(x))
