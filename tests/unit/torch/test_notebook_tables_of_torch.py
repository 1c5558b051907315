"""What notebooks show of summaries and plans."""

from __future__ import annotations

import torch

import bestof.torch as bt
from bestof.torch.summary import PassSummary, Summary


def test_a_summary_is_a_table_with_its_sums() -> None:
    row = PassSummary("forward", "<i3>", "im2row", 2.0, 0.5, 7)
    summary = Summary(1, (row,), 10.5, 1.25, 4, left_out=(("product", "no kernel"),))
    table = summary._repr_html_()
    for text in ("&lt;i3&gt;", "im2row", "2.00 s", "500 ms", "saved 10.5 s, tuning cost 1.25 s"):
        assert text in table
    assert "product stays PyTorch&#x27;s own: no kernel" in table
    assert str(summary).splitlines() == [
        "operation  problem  chosen  calls  before   after",
        "forward    <i3>     im2row      7  2.00 s  500 ms",
        "saved 10.5 s, tuning cost 1.25 s in 4 trials",
        "product stays PyTorch's own: no kernel",
    ]


def test_the_explanation_of_a_plan_is_a_table() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
    plan = bt.optimize(model, torch.randn(2, 8))
    assert repr(plan) == "OptimizedModel(for float32 (2, 8))"
    explained = plan.explain()
    table = explained._repr_html_()
    assert all(step.problem in table for step in explained.steps)
    assert f"in {len(explained.steps)} steps" in table


def test_a_plan_names_what_it_serves() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.ReLU()).eval()
    plan = bt.optimize(model, torch.randn(3, 7))
    table = plan._repr_html_()
    assert "accuracy float32" in table
    assert "(3, 7)" in table
    assert "1 of 1" in table


def test_the_explanation_names_modules() -> None:
    torch.manual_seed(0)

    class Joined(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            parts = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
            self.features = torch.nn.Sequential(*parts)
            self.query, self.key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pooled = self.features(x).mean((2, 3))
            product: torch.Tensor = self.query(pooled) * self.key(pooled)
            return product

    plan = bt.optimize(Joined().eval(), torch.randn(2, 3, 8, 8))
    explained = plan.explain()
    assert [step.modules for step in explained.steps if step.gflops] == ["features.0", "query, key"]
    assert str(explained).startswith("module ")
    assert "features.0" in explained._repr_html_()
    plan.release()
    assert not any(step.modules for step in plan.explain().steps)
    assert str(plan.explain()).startswith("problem ")
