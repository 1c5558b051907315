"""What does a capture cost, and what share of a step's wall time do its lines explain?

A training step of a ResNet of pytorchcv, alone and captured in turn: the cost is the median ratio
of neighbours. Coverage is that of the steady step: plain, with `enable` after --settle steps, and
of a fused inference plan. A trial of a selector is covered as the settled kernel is.

    python benchmarks/capture.py --threads 1 --cpu-time      # on a busy machine
    python benchmarks/capture.py --model resnet18 --size 96
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from in_turn import add_clock
from pytorchcv.models import resnet
from torch.nn import functional

import bestof.torch as bt
from bestof.profile import capture
from bestof.profile.steady import steady_of


def coverage_of(step: Callable[[], object], steps: int) -> str:
    with capture() as captured:
        for _ in range(steps):
            step()
    found = captured.profile
    share = 100 * (steady_of(found).coverage or 0.0)
    return (
        f"{share:.1f} %, {found.lines - found.unknown} of {found.lines} lines understood, "
        f"{found.unattributed} without an operation"
    )


def costs_of(step: Callable[[], object], rounds: int, clock: Callable[[], float]) -> list[float]:
    """Return what a captured step takes over the step before it, one ratio a round."""
    ratios = []
    for _ in range(rounds):
        begin = clock()
        step()
        middle = clock()
        with capture():
            step()  # hooks and buffers are made at the first step
            captured = clock()
            step()
            ended = clock()
        ratios.append((ended - captured) / (middle - begin))
    return ratios


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50", help="a name of pytorchcv.models.resnet")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="steps of a profile")
    parser.add_argument("--settle", type=int, default=30, help="steps of `enable` before")
    add_clock(parser)
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = getattr(resnet, options.model)(in_size=(options.size, options.size))
    x = torch.randn(options.batch, 3, options.size, options.size)
    labels = torch.arange(options.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    for _ in range(2):
        step()
    print("coverage, plain:        ", coverage_of(step, options.steps), flush=True)
    costs = sorted(costs_of(step, options.rounds, clock))
    middle = statistics.median(costs)
    print(f"cost of a capture:        {100 * (middle - 1):.1f} %", end=" ")
    print(f"({100 * (costs[0] - 1):.1f} to {100 * (costs[-1] - 1):.1f} %)", flush=True)
    plan = bt.optimize(model.eval(), (x,))
    with torch.no_grad():
        plan(x)
        print("coverage, plan:         ", coverage_of(lambda: plan(x), 5), flush=True)
    model.train()
    with bt.enabled():
        for _ in range(options.settle):
            step()
        print("coverage, with `enable`:", coverage_of(step, options.steps))


if __name__ == "__main__":
    main()
