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
from collections.abc import Callable

import torch
from in_turn import add_clock, print_ratios
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
    add_clock(parser)
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
    print_ratios(steps, options.rounds, cpu_time=options.cpu_time)


if __name__ == "__main__":
    main()
