"""How much faster is the native focal loss than PyTorch's? Ratios: one process, in turn, on one
pool of threads.

The reference is the formula that torchvision and most detectors use (binary cross entropy with
logits, p_t, a power), summed, forward and backward: in eager mode, and compiled by torch.compile. A
ratio above 1 means that ours is faster.

    python benchmarks/focal_loss.py --threads 2
    python benchmarks/focal_loss.py --threads 1 --cpu-time      # on a busy machine
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from bestof import kernels


def reference(x: Tensor, targets: Tensor) -> Tensor:
    """The sum of focal losses, alpha 0.25 and gamma 2."""
    p = torch.sigmoid(x)
    ce = functional.binary_cross_entropy_with_logits(x, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    return ((0.25 * targets + 0.75 * (1 - targets)) * ce * (1 - p_t) ** 2).sum()


def gradient_by(
    function: Callable[[Tensor, Tensor], Tensor], x: Tensor, targets: Tensor
) -> Callable[[], Tensor]:
    """A step: forward and backward by autograd."""
    leaf = x.clone().requires_grad_()

    def step() -> Tensor:
        leaf.grad = None
        function(leaf, targets).backward()
        assert leaf.grad is not None
        return leaf.grad

    return step


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", type=int, nargs="+", default=[2, 120087, 91])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--cpu-time", action="store_true", help="count the time of the processor, of all threads"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    x = torch.randn(options.shape) * 2
    targets = (torch.rand(options.shape) < 0.01).float()
    gradient = torch.empty_like(x)

    def native() -> Tensor:
        return kernels.focal_loss(x, targets, gradient=gradient, threads=options.threads).gradient

    steps = {
        "native": native,
        "eager": gradient_by(reference, x, targets),
        "compiled": gradient_by(torch.compile(reference), x, targets),
    }
    wanted = steps["eager"]().clone()
    for step in steps.values():
        torch.testing.assert_close(step(), wanted, rtol=1e-3, atol=1e-6)
    clock = time.process_time if options.cpu_time else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            begin = clock()
            step()
            times[name].append(clock() - begin)
    for name, taken in times.items():
        low, middle, high = (1e3 * f(taken) for f in (min, statistics.median, max))
        ratio = statistics.median(t / n for t, n in zip(taken, times["native"], strict=True))
        print(f"{name:10s} {middle:8.1f} ms ({low:.1f} to {high:.1f})   {ratio:6.2f} times native")


if __name__ == "__main__":
    main()
