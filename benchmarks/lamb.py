"""How much faster is a step of LAMB by the native kernel than by PyTorch's foreach operations?
Ratios: one process, in turn.

A network of 25 million parameters in tensors of the sizes of ResNet50. Predicted from the bytes
that each moves where no cache holds the tensors: the kernel 40 an element, the foreach operations
124. A ratio above 1 means that ours is faster.

    python benchmarks/lamb.py --threads 2
    python benchmarks/lamb.py --threads 1 --cpu-time      # on a busy machine
"""

from __future__ import annotations

import argparse

import torch
from in_turn import add_clock, print_ratios

import bestof.torch as bt

# Channels of the blocks of ResNet50 by stage: (in, middle, out, blocks).
STAGES = ((64, 64, 256, 3), (256, 128, 512, 4), (512, 256, 1024, 6), (1024, 512, 2048, 3))


def resnet50_shapes() -> list[tuple[int, ...]]:
    """Return the shapes of the 161 tensors of ResNet50, 25.6 million parameters."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    for entry, middle, out, blocks in STAGES:
        for block in range(blocks):
            begin = entry if block == 0 else out
            for one in ((middle, begin, 1, 1), (middle, middle, 3, 3), (out, middle, 1, 1)):
                shapes += [one, one[:1], one[:1]]
            if block == 0:
                shapes += [(out, entry, 1, 1), (out,), (out,)]
    return [*shapes, (1000, 2048), (1000,)]


def optimizer(shapes: list[tuple[int, ...]], foreach: bool | None) -> bt.optim.LAMB:
    """Return an optimizer whose tensors have gradients; the same ones for every `foreach`."""
    generator = torch.Generator().manual_seed(1)
    params = []
    for shape in shapes:
        param = torch.randn(shape, generator=generator).requires_grad_()
        param.grad = torch.randn(shape, generator=generator)
        params.append(param)
    return bt.optim.LAMB(params, foreach=foreach)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--one", type=int, metavar="N", help="one tensor of so many parameters")
    add_clock(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shapes: list[tuple[int, ...]] = [(options.one,)] if options.one else resnet50_shapes()
    ways = {
        name: optimizer(shapes, foreach)
        for name, foreach in (("native", None), ("foreach", True), ("each", False))
    }
    for way in ways.values():
        way.step()  # the first step makes the state
    native = ways["native"].param_groups[0]["params"]
    count = sum(param.numel() for param in native)
    print(f"{count / 1e6:.1f} million parameters in {len(shapes)} tensors")
    steps = {name: way.step for name, way in ways.items()}
    print_ratios(steps, options.rounds, cpu_time=options.cpu_time)
    for way in ways.values():
        for one, other in zip(native, way.param_groups[0]["params"], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main()
