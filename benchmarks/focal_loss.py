"""How much faster is the focal loss of bestof than PyTorch's? Ratios: one process, in turn, on one
pool of threads.

`native` is `bestof.torch.sigmoid_focal_loss` with autograd, summed, forward and backward. `kernel`
is its kernel alone. The reference is the formula that torchvision and most detectors use (binary
cross entropy with logits, p_t, a power): in eager mode, and compiled by torch.compile. A ratio
above 1 means that `native` is faster.

The limits are the kernel's 12 bytes an element at the bandwidth of a copy, and its arithmetic on
operands in the caches.

    python benchmarks/focal_loss.py --threads 2
    python benchmarks/focal_loss.py --threads 1 --cpu-time      # on a busy machine
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from in_turn import add_clock, print_ratios
from torch import Tensor
from torch.nn import functional

import bestof.torch as bt
from bestof import kernels
from bestof.profile.peak import measure_peak
from bestof.profile.recording.recorder import processor_name

SETTLING = 24  # calls in which bestof chooses, by trials of a part of the logits
CACHED = 1 << 18  # elements: 3 MiB in all


def reference(x: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of focal losses, alpha 0.25 and gamma 2."""
    p = torch.sigmoid(x)
    ce = functional.binary_cross_entropy_with_logits(x, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    return ((0.25 * targets + 0.75 * (1 - targets)) * ce * (1 - p_t) ** 2).sum()


def gradient_by(
    function: Callable[[Tensor, Tensor], Tensor], x: Tensor, targets: Tensor
) -> Callable[[], Tensor]:
    """Return a step: forward and backward by autograd."""
    leaf = x.clone().requires_grad_()

    def step() -> Tensor:
        leaf.grad = None
        function(leaf, targets).backward()
        assert leaf.grad is not None
        return leaf.grad

    return step


def ours(x: Tensor, targets: Tensor) -> Tensor:
    return bt.sigmoid_focal_loss(x, targets, reduction="sum")


def print_limits(x: Tensor, targets: Tensor, threads: int) -> None:
    """Print what memory and arithmetic allow at best, in ms."""
    count = x.numel()
    memory = 12 * count / measure_peak().bandwidth
    part, part_targets = x.flatten()[:CACHED], targets.flatten()[:CACHED]
    gradient, times = torch.empty_like(part), []
    for _ in range(50):
        begin = time.perf_counter()
        kernels.focal_loss(part, part_targets, gradient=gradient, threads=threads)
        times.append(time.perf_counter() - begin)
    arithmetic = min(times) * count / part.numel()
    print(f"limits: {1e3 * memory:.1f} ms of memory, {1e3 * arithmetic:.1f} ms of arithmetic")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", type=int, nargs="+", default=[2, 120087, 91])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    add_clock(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    x = torch.randn(options.shape) * 2
    targets = (torch.rand(options.shape) < 0.01).float()
    gradient = torch.empty_like(x)

    def kernel() -> Tensor:
        return kernels.focal_loss(x, targets, gradient=gradient, threads=options.threads).gradient

    steps = {
        "native": gradient_by(ours, x, targets),
        "kernel": kernel,
        "eager": gradient_by(reference, x, targets),
        "compiled": gradient_by(torch.compile(reference), x, targets),
    }
    for _ in range(SETTLING):
        steps["native"]()
    wanted = steps["eager"]().clone()
    for step in steps.values():
        torch.testing.assert_close(step(), wanted, rtol=1e-3, atol=1e-6)
    print(f"{processor_name()}, {options.threads} threads")
    print_limits(x, targets, options.threads)
    print_ratios(steps, options.rounds, cpu_time=options.cpu_time)


if __name__ == "__main__":
    main()
