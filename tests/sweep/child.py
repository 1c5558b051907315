"""Runs cases of the sweep, one after the other, and tells before each what it runs.

The lines on standard output are JSON: {"run": [index, name]} before a case, then
{"wrong": [index, name, why]} if it failed. `run` starts this program with memory that is checked,
and takes the last line for the culprit if the process ends.

Operands end where a page begins that may not be read, so a read behind them ends the process.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "numerics")]

import models  # noqa: E402  beside this file
import problems  # noqa: E402
import right_plans  # noqa: E402
from fenced_memory import at_the_end  # noqa: E402  numerics/

from bestof.torch.ops.bound import BFLOAT16_INSIDE, ErrorBound  # noqa: E402
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass  # noqa: E402
from bestof.torch.ops.convolution.direction import Pass  # noqa: E402
from bestof.torch.ops.convolution.passes import PASSES  # noqa: E402
from bestof.torch.ops.convolution.problem import ConvProblem  # noqa: E402
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv  # noqa: E402
from bestof.torch.ops.pooling.max_pool2d import MaxPool2d, MaxPoolProblem, Pooled  # noqa: E402
from bestof.torch.ops.product.problem import ProductProblem  # noqa: E402
from bestof.torch.ops.product.product import Product, bound_of  # noqa: E402
from bestof.torch.ops.product.pytorch_product import PyTorchProduct  # noqa: E402
from bestof.torch.ops.row import Row  # noqa: E402
from bestof.torch.plan.algorithms.algorithm import Algorithm, PlacedLayer  # noqa: E402
from bestof.torch.plan.algorithms.onednn import OneDnn  # noqa: E402
from bestof.torch.plan.algorithms.pytorch import PyTorch  # noqa: E402
from bestof.torch.plan.layers.frozen_weights import FrozenWeights  # noqa: E402
from bestof.torch.plan.layers.layer import Layer  # noqa: E402
from bestof.torch.plan.layers.problem import FusedProblem, problem_of  # noqa: E402

SLOW, LEAST_SECONDS = 20.0, 0.5
"""A trial is called slow if it takes so many times as long as PyTorch's own kernel, and so long."""

Case = tuple[str, Callable[[], str]]
"""A name, and a function that returns what is wrong, or nothing."""

_aten = torch.ops.aten


def _fenced(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides that ends where memory ends."""
    if not tensor.numel():
        return tensor
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    dense = tensor.permute(order).contiguous()
    bits = dense.view(torch.int16) if tensor.dtype is torch.bfloat16 else dense
    copy = torch.from_numpy(at_the_end(bits.numpy())).view(tensor.dtype)
    return copy.permute(list(np.argsort(order)))


def _image(
    generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, layout: str
) -> Tensor:
    drawn = torch.randn(shape, generator=generator).to(dtype)
    last = layout == "channels_last"
    return _fenced(drawn.contiguous(memory_format=torch.channels_last) if last else drawn)


def _told(
    result: Tensor,
    exact: Tensor,
    scale: Tensor,
    bound: ErrorBound,
    plain: Callable[[], Tensor] | None = None,
) -> str:
    """Return how far a result is from float64, if that is beyond its bound.

    plain: computes the result by PyTorch's own kernel. A sum that gets far from 0 on its way errs
    more than others, by any kernel: PyTorch's own erred by 1.29e-5 where another one erred by
    1.46e-5 for 1.38e-5. So the largest error may also be twice that of PyTorch's own kernel.

    scale: the square root of the sum of the squares of the products, for each element. That is the
    rms of a sum of so many independent products, also where they cancel. A result of bfloat16 may
    differ by a rounding more. The rms of a few errors scatters: that of n by 1 / sqrt(2 n).
    """
    if result.shape != exact.shape:
        return f"shape {tuple(result.shape)} for {tuple(exact.shape)}"
    typical = scale.square().mean().sqrt().clamp(min=1.0)  # a product of two operands is about 1
    error = (result.double() - exact).abs()
    if result.dtype is torch.bfloat16:
        error = (error - 2**-8 * exact.abs()).clamp(min=0.0)
    slack = 1 + 4 / math.sqrt(2 * error.numel())
    rms, most = (error.square().mean().sqrt() / typical).item(), (error.max() / typical).item()
    if rms <= slack * bound.rms:
        if most <= slack * bound.maximum:
            return ""
        if plain is not None and most <= 2 * ((plain().double() - exact).abs().max() / typical):
            return ""
    return f"rms error {rms:.3g} for {bound.rms:.3g}, largest {most:.3g} for {bound.maximum:.3g}"


def _passes(problem: ConvProblem, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the operands of each pass, and its float64 result with the scale of each element."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, problem.dtype)
    x = _image(generator, problem.input_shape, dtype, problem.input_layout)
    w = _image(generator, problem.weight_shape, dtype, problem.weight_layout)
    g = _image(generator, problem.output_shape, dtype, problem.grad_layout or "channels_first")
    bias = torch.randn(problem.weight_shape[:1], generator=generator).to(dtype)
    given = {
        "forward": (x, w, bias if problem.bias else None),
        "input gradient": (g, w),
        "weight gradient": (g, x),
    }
    geometry = (problem.stride, problem.padding, problem.dilation, False, (0, 0), problem.groups)
    found = []
    for one, two, three, four in (
        [tensor.double().contiguous() for tensor in (x, w, g, bias)],
        [tensor.double().contiguous().square() for tensor in (x, w, g, bias)],
    ):
        forward = _aten.convolution(one, two, four if problem.bias else None, *geometry)
        both = True, True, False
        gradients = _aten.convolution_backward(three, one, two, None, *geometry, both)
        found.append((forward, *gradients[:2]))
    expected = {
        name: (exact, square.sqrt())
        for name, exact, square in zip(given, found[0], found[1], strict=True)
    }
    return given, expected


def convolution(seed: int, index: int) -> Iterator[Case]:
    """Yield the alternatives of the three passes that are not native kernels.

    PyTorch's own kernel is not among them: it is what programs run without bestof.
    """
    problem = problems.convolution(seed, index)
    torch.set_num_threads(problem.threads)
    given, expected = _passes(problem, index)
    # Without the dispatcher, which would ask bestof where it is enabled.
    originals = PyTorchConv(_aten.convolution.default, _aten.convolution_backward.default)
    for catalogue in PASSES:
        at = problem
        if catalogue.direction != "forward":
            at = problem._replace(bias=False, grad_layout="channels_first")
        operands = given[catalogue.direction]
        for row in catalogue.applying(at):
            if row.name != "as is" and "native" not in row.name:
                arguments = catalogue, row, at, operands, expected[catalogue.direction]
                yield f"{catalogue.direction}: {row.name}", partial(_try, originals, *arguments)


def _try(
    originals: PyTorchConv,
    catalogue: Conv2dPass,
    row: Pass,
    problem: ConvProblem,
    operands: tuple[Tensor, ...],
    expected: tuple[Tensor, Tensor],
) -> str:
    """Return what is wrong with the result of an alternative, or with its time."""
    first = catalogue.rows[0].function
    begin = time.perf_counter()
    result = row.function(originals, problem, *operands)
    seconds = time.perf_counter() - begin
    bound = catalogue.bound(row, problem)
    if problem.dtype == "bfloat16" and row.bound is None and row.name != "float32":
        bound = _loose(bound)  # without AVX-512, PyTorch may sum in bfloat16
    told = _told(result, *expected, bound, lambda: first(originals, *operands, problem))
    if told or seconds < LEAST_SECONDS or row.name not in catalogue.promising(problem):
        return told
    begin = time.perf_counter()
    first(originals, *operands, problem)
    plain = time.perf_counter() - begin
    return f"slow: {seconds:.2f} s for {plain:.3f}" if seconds > SLOW * plain else ""


def _loose(bound: ErrorBound) -> ErrorBound:
    return ErrorBound(10 * BFLOAT16_INSIDE.rms + bound.rms, 10 * BFLOAT16_INSIDE.maximum)


def layer(seed: int, index: int) -> Iterator[Case]:
    """Yield the algorithms of plans that call PyTorch or oneDNN, for a fused convolution."""
    one = problems.convolution(seed, index)
    torch.set_num_threads(one.threads)
    one = one._replace(input_layout="channels_last", weight_layout="channels_first")
    given, expected = _passes(one, index)
    x, weight, bias = given["forward"]
    frozen = FrozenWeights(weight, bias, None, one.groups)
    site_layer = Layer(frozen, one.stride, one.padding, one.dilation, one.groups)
    problem = problem_of(site_layer, "float32", tuple(x.shape), False)
    rows: tuple[Algorithm, ...] = (OneDnn(), PyTorch())
    for row in rows:
        if row.supports(problem):
            yield (
                row.name,
                partial(_try_algorithm, row, site_layer, problem, x, expected["forward"]),
            )


def _try_algorithm(
    row: Algorithm,
    layer: Layer,
    problem: FusedProblem,
    x: Tensor,
    expected: tuple[Tensor, Tensor],
) -> str:
    out = torch.full(expected[0].shape, torch.nan, dtype=x.dtype)
    out = out.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        row.bind(PlacedLayer(layer, problem, x, out, None, out)).run()
    bound = ErrorBound(row.error(problem), 10 * row.error(problem))
    return _told(out, *expected, _loose(bound) if x.dtype is torch.bfloat16 else bound)


def product(seed: int, index: int) -> Iterator[Case]:
    """Yield the alternatives of a matrix product that are not native kernels."""
    drawn = problems.product(seed, index)
    torch.set_num_threads(drawn.threads)
    generator = torch.Generator().manual_seed(index)

    def matrix(rows: int, columns: int, by_columns: bool) -> Tensor:
        shape = (columns, rows) if by_columns else (rows, columns)
        wide = torch.randn((shape[0], shape[1] + drawn.gap), generator=generator)
        part = _fenced(wide)[:, drawn.gap :]
        return part.t() if by_columns else part

    a, b = matrix(drawn.m, drawn.k, drawn.a_columns), matrix(drawn.k, drawn.n, drawn.b_columns)
    bias = _fenced(torch.randn(drawn.n, generator=generator)) if drawn.bias else None
    problem = ProductProblem.of("addmm" if drawn.bias else "mm", a, b, "relaxed")
    exact = a.double() @ b.double() + (0 if bias is None else bias.double())
    for row in Product().rows[1:]:
        if "native" not in row.name and row.can_run(problem):
            yield row.name, partial(_try_product, row, problem, (bias, a, b), exact)


def _try_product(
    row: Row[ProductProblem],
    problem: ProductProblem,
    operands: tuple[Tensor | None, Tensor, Tensor],
    exact: Tensor,
) -> str:
    _, a, b = operands
    with torch.no_grad():
        result = row.function(PyTorchProduct(), problem, *operands)
    scale = (a.double().square() @ b.double().square()).sqrt()
    return _told(result, exact, scale, bound_of(row, problem))


def pooling(seed: int, index: int) -> Iterator[Case]:
    """Yield the alternatives of a maximum pooling, whose values and indices must be PyTorch's."""
    drawn = problems.pooling(seed, index)
    torch.set_num_threads(drawn.threads)
    generator = torch.Generator().manual_seed(index)
    x = _image(generator, drawn.shape, getattr(torch, drawn.dtype), "channels_first")
    problem = MaxPoolProblem(*drawn)
    exact = _aten.max_pool2d_with_indices(x.double(), *problem[1:6])
    for row in MaxPool2d.rows[1:]:
        if row.is_tried(problem):
            yield row.name, partial(_try_pooling, row, problem, x, exact)


def _try_pooling(
    row: Row[MaxPoolProblem], problem: MaxPoolProblem, x: Tensor, exact: Pooled
) -> str:
    maxima, indices = row.function(_aten.max_pool2d_with_indices, problem, x)
    same = torch.equal(maxima.double(), exact[0]) and torch.equal(indices, exact[1])
    return "" if same else "other maxima or indices than float64"


def model(seed: int, index: int) -> Iterator[Case]:
    """Yield the plan of a model of random parts, with algorithms that are drawn."""
    torch.set_num_threads(1)
    drawn = models.model(seed, index)
    yield (
        str(drawn.example.dtype).removeprefix("torch."),
        partial(right_plans.complaint, *drawn, Random(f"{seed} {index}")),
    )


def faults(_seed: int, index: int) -> Iterator[Case]:
    """Yield the faults that a sweep must find: a test of the sweep itself."""
    yield "right", str
    if index == 1:
        yield "written behind", _write_behind
        yield "read behind", _read_behind
    if index == 2:
        yield "wrong", lambda: "told"


def _write_behind() -> str:
    block = torch.empty(1000)
    ctypes.memset(block.data_ptr(), 7, block.nbytes + 1)
    del block
    return ""


def _read_behind() -> str:
    end = _fenced(torch.zeros(4))
    return str(ctypes.string_at(end.data_ptr(), 17)[16:])


OPERATIONS = {
    "faults": faults,
    "convolution": convolution,
    "layer": layer,
    "product": product,
    "pooling": pooling,
    "model": model,
}


def main(operation: str, seed: int, indices: range, done: int) -> None:
    """Run all cases of these indices, without the first `done` cases of the first index."""
    for index in indices:
        cases = OPERATIONS[operation](seed, index)
        for name, run in islice(cases, done if index == indices.start else 0, None):
            print(json.dumps({"run": [index, name]}), flush=True)
            try:
                told = run()
            except Exception as error:  # whatever it raises is what is wrong
                told = f"{type(error).__name__}: {str(error)[:200]}"
            if told:
                print(json.dumps({"wrong": [index, name, told]}), flush=True)


if __name__ == "__main__":
    seed, first, last, done = map(int, sys.argv[2:])
    main(sys.argv[1], seed, range(first, last), done)
