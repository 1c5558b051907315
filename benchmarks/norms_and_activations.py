"""How much faster are the rows of norms, softmax and activations than PyTorch's own kernels?

Each call of an eager program, with tensors of models, by PyTorch's own kernel and by the native row
in turn, in one process. Results are allocated by both. A ratio above 1 means that the native row is
faster.

    python benchmarks/norms_and_activations.py --threads 2
    python benchmarks/norms_and_activations.py --threads 1 --cpu-time      # on a busy machine
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from in_turn import add_clock
from torch import Tensor

import bestof.torch as bt
from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.ops.operation import Call

aten = torch.ops.aten
Options = argparse.Namespace

ROWS = (1024, 768), (1576, 768), (4096, 320), (16384, 128), (1024, 1024), (8192, 768)
SOFTMAX = ((8, 12, 128, 128), 3), ((8, 12, 197, 197), 3), ((1024, 1000), 1), ((8, 19, 128, 128), 1)
ELEMENTS = (1024, 3072), (1576, 3072), (8, 64, 64, 64)
IMAGES = (8, 64, 64, 64), (2, 320, 64, 64), (2, 640, 32, 32), (8, 128, 32, 32), (1, 512, 64, 64)


def measure(
    words: str, name: str, options: Options, *arguments: object, **keywords: object
) -> None:
    """Print the times of both rows, and the median of their ratios."""
    override = operation_override(name)
    assert override is not None
    call: Call | None = override.operation.call("float32", *arguments, **keywords)
    if call is None:
        print(f"{name:22} {words:24} PyTorch answers")
        return
    found = call
    own, native = (
        lambda row=row: row.function(override.original, found.problem, *found.operands)
        for row in override.operation.rows
    )
    for way in own, native, own, native:  # warm
        way()
    clock = time.process_time if options.cpu_time else time.perf_counter
    pairs = [(taken(own, clock), taken(native, clock)) for _ in range(options.rounds)]
    before, after = (1e3 * statistics.median(one) for one in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"{name:22} {words:24} {before:8.3f} ms {after:8.3f} ms  {ratio:5.2f}", flush=True)


def taken(way: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the seconds of a call."""
    begin = clock()
    way()
    return clock() - begin


def norms(options: Options) -> None:
    """Measure layer norm and both gradients."""
    for shape in ROWS:
        x, gradient, weight, bias = (torch.randn(one) for one in (shape, shape, shape[1], shape[1]))
        words, size = text(shape), list(shape[1:])
        _, mean, rstd = aten.native_layer_norm(x, size, weight, bias, 1e-5)
        measure(words, "layer norm", options, x, size, weight, bias, 1e-5)
        rest = gradient, x, size, mean, rstd, weight, bias, [True] * 3
        measure(words, "layer norm backward", options, *rest)
    for shape in IMAGES:
        x, gradient = (channels_last(torch.randn(shape)) for _ in range(2))
        weight, bias = torch.randn(shape[1]), torch.randn(shape[1])
        sizes = shape[0], shape[1], shape[2] * shape[3], 32
        _, mean, rstd = aten.native_group_norm(x, weight, bias, *sizes, 1e-5)
        rest = gradient, x, mean, rstd, weight, *sizes, [True] * 3
        measure(text(shape), "group norm backward", options, *rest)


def activations(options: Options) -> None:
    """Measure softmax, GELU and SiLU with both gradients."""
    for shape, axis in SOFTMAX:
        words = f"{text(shape)} axis {axis}"
        measure(words, "softmax", options, torch.randn(shape), axis, False)
    for dtype in torch.float32, torch.bfloat16:
        for shape in ELEMENTS:
            x, gradient = (torch.randn(shape).to(dtype) for _ in range(2))
            words = f"{text(shape)} {str(dtype)[6:]}"
            for approximate in "none", "tanh":
                more = f"{words} {approximate}"
                measure(more, "gelu", options, x, approximate=approximate)
                measure(more, "gelu backward", options, gradient, x, approximate=approximate)
            measure(words, "silu", options, x)
            measure(words, "silu backward", options, gradient, x)


def text(shape: Sequence[int]) -> str:
    """Return a shape as in `8 x 64`."""
    return " x ".join(map(str, shape))


def channels_last(x: Tensor) -> Tensor:
    """Return images in channels last."""
    return x.contiguous(memory_format=torch.channels_last)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=31)
    add_clock(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bt.enable()  # keeps freed memory, as programs have it
    with torch.no_grad():
        norms(options)
        activations(options)


if __name__ == "__main__":
    main()
