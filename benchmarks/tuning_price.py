"""What share of a short run tuning takes, with and without a budget.

    python benchmarks/tuning_price.py [--seconds 20] [--budget 0.05]

A small ResNet is trained in processes of their own, without a store. Columns: the steps that a run
made; trials; what trials and first comparisons cost beyond the best known, in seconds and as a
share of the run; the same share by the report, against the chosen alternatives; the time of a step
at the end. Promised: 3 % of the run, and never above 5 %.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.selection.identity.host import host
from bestof.selection.state.registry import Defaults


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(inner)) + self.shortcut(x)).relu()


def network() -> nn.Module:
    sizes = (3, 16, 16, 32, 32, 64, 64)
    blocks = [
        Block(inputs, outputs, 1 + (inputs > 3 and inputs != outputs))
        for inputs, outputs in pairwise(sizes)
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def train(seconds: float, budget: float | None) -> str:
    """Train for so long; return a row of the table."""
    torch.manual_seed(0)
    Defaults.budget.is_on = True  # it also keeps the account without a bound
    bt.enable({"kernel": {"budget": budget}})
    model, images, labels = network(), torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    took: list[float] = []
    began, worst = time.perf_counter(), 0.0
    while (now := time.perf_counter()) - began < seconds:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        took.append(time.perf_counter() - now)
        run = time.perf_counter() - began
        worst = max(worst, Defaults.budget.lost / run if run > seconds / 4 else 0.0)
    run, lost, summary = time.perf_counter() - began, Defaults.budget.lost, bt.summary()
    name = "none" if budget is None else f"{budget:.0%}"
    return (
        f"{name:>6} {len(took):6} {summary.trials:7} {lost:8.2f} s {lost / run:7.1%} {worst:7.1%} "
        f"{summary.seconds_tuning / run:8.1%} {1e3 * median(took[-20:]):8.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--budget", type=float, default=0.05)
    parser.add_argument("--child", choices=("bounded", "unbounded"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(train(options.seconds, options.budget if options.child == "bounded" else None))
        return
    print(f"{host()}, {torch.get_num_threads()} threads, {options.seconds:g} s")
    print("budget  steps  trials       cost   share   worst   report    a step")
    given = [f"--seconds={options.seconds}", f"--budget={options.budget}"]
    for child in ("bounded", "unbounded"):
        command = [sys.executable, __file__, *given, f"--child={child}"]
        subprocess.run(command, check=True, env={**os.environ, "BESTOF_STORE": "off"})


if __name__ == "__main__":
    main()
