"""The ways to compute one problem of a profile: by oneDNN, by MKL and by bestof."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from bestof import kernels
from bestof.errors import KernelError
from bestof.profile.projection.onednn_library import Unsupported, library
from bestof.profile.projection.onednn_primitive import Primitive, primitives_of
from bestof.profile.verbose.line import Line
from bestof.profile.verbose.mkl import dtype_of
from bestof.profile.verbose.work import bytes_of, sizes_of

# Implementations that are never the fastest and take seconds.
_REFERENCES = ("ref", "ref_int8", "gemm_ref", "simple")


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to compute a problem.

    `kind` is `same` (the call as it was logged), `onednn` (oneDNN's free choice), `implementation`
    (another one of oneDNN's) or `bestof`. `bind` returns a function on its own buffers, and `free`
    frees them.
    """

    kind: str
    name: str
    bytes: int
    bind: Callable[[], Callable[[], None]]
    free: Callable[[], None] = lambda: None


def alternatives_of(line: Line) -> Iterator[Alternative]:
    """Yield the ways, the logged call first. Raises ProfileError if not even that can be
    replayed."""
    if line.source == "mkl":
        yield _product(line)
    elif line.primitive == "rnn":
        yield _recurrent(line)
    elif line.source == "bestof":
        # The logged call ran a kernel of bestof, which is among those below.
        if line.primitive != "convolution" or _native_sizes(line) is None:
            raise Unsupported(f"{line.primitive} is not replayed")
    else:
        yield from _onednn(line, free=False)
    if line.primitive == "convolution":
        if line.source == "onednn":
            yield from _onednn(line, free=True)
        yield from _native(line)


def _onednn(line: Line, free: bool) -> Iterator[Alternative]:
    first = True
    try:
        for primitive in primitives_of(library(), line, free):
            reference = primitive.implementation.split(":")[0] in _REFERENCES
            if reference and not first:
                primitive.destroy()
                continue
            kind = ("onednn" if free else "same") if first else "implementation"
            layouts = "its own layouts" if free else "the same layouts"
            yield _of_primitive(kind, f"{primitive.implementation}, {layouts}", primitive)
            first = False
    except Unsupported:
        if not free:
            raise


def _of_primitive(kind: str, name: str, primitive: Primitive) -> Alternative:
    return Alternative(kind, f"oneDNN {name}", primitive.bytes, primitive.bind, primitive.destroy)


_TYPES = {"f32": torch.float32, "f64": torch.float64}


def _product(line: Line) -> Alternative:
    """Return a matrix product of MKL, computed by PyTorch, with its transpositions.

    MKL counts by columns, so the operands are swapped.
    """
    dtype = _TYPES.get(dtype_of(line.implementation))
    if line.primitive != "matmul" or dtype is None:
        raise Unsupported(f"{line.implementation} is not replayed")
    if ":" in line.problem:
        return _batch(line, dtype)
    size = sizes_of(line.problem)
    if not {"m", "n", "k"} <= size.keys():
        raise Unsupported(f"{line.implementation} tells no sizes")
    m, n, k = size["m"], size["n"], size["k"]
    transposed = [letter in "TC" for letter in (line.auxiliary or "NN")[:2].upper()]

    def bind() -> Callable[[], None]:
        left, right, out = (torch.ones(*sizes, dtype=dtype) for sizes in ((n, k), (k, m), (n, m)))
        # A transposed operand is dense in the other order.
        left = left.t().contiguous().t() if transposed[1] else left
        right = right.t().contiguous().t() if transposed[0] else right
        return lambda: _ignore(torch.mm(left, right, out=out))

    return _of_mkl(line, bind)


def _batch(line: Line, dtype: torch.dtype) -> Alternative:
    """Return a batch of products. The line does not say which operands were transposed."""
    shapes = [tuple(map(int, text.split("x"))) for text in line.problem.split(":")]

    def bind() -> Callable[[], None]:
        left, right = (torch.ones(shape, dtype=dtype) for shape in shapes)
        out = torch.empty(*shapes[0][:-1], shapes[1][-1], dtype=dtype)
        return lambda: _ignore(torch.bmm(left, right, out=out))

    return _of_mkl(line, bind)


def _of_mkl(line: Line, bind: Callable[[], Callable[[], None]]) -> Alternative:
    return Alternative("same", line.implementation, max(bytes_of(line), 1), bind)


def _recurrent(line: Line) -> Alternative:
    """Return one layer of a recurrent cell, computed by PyTorch, which calls oneDNN."""
    size = sizes_of(line.problem)
    kind = {"vanilla_lstm": torch.nn.LSTM, "lbr_gru": torch.nn.GRU}.get(
        next((word for word in ("vanilla_lstm", "lbr_gru") if word in line.auxiliary), "")
    )
    if kind is None or not line.direction.startswith("forward"):
        raise Unsupported(f"rnn {line.auxiliary} {line.direction} is not replayed")

    def bind() -> Callable[[], None]:
        cell = kind(size["slc"], size["dhc"], size["l"])
        x = torch.ones(size["t"], size["mb"], size["slc"])

        def run() -> None:
            with torch.no_grad():
                cell(x)

        return run

    return Alternative("same", "PyTorch's layer", max(bytes_of(line), 1), bind)


@dataclass(frozen=True, slots=True)
class _Native:
    """Shapes as the native kernels take them: x NHWC, w OHWI, y NHWC."""

    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    y: tuple[int, int, int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


def _native_sizes(line: Line) -> _Native | None:
    size = sizes_of(line.problem)
    if "id" in size or line.dtype not in ("f32", ""):
        return None
    g = max(size.get("g", 1), 1)
    h = {name: size.get(f"{name}h", 0 if name in "dp" else 1) for name in "ioksdp"}
    w = {name: size.get(f"{name}w", 0 if name in "dp" else 1) for name in "ioksdp"}
    for one in (h, w):
        after = (
            (one["o"] - 1) * one["s"] + (one["k"] - 1) * (one["d"] + 1) + 1 - one["i"] - one["p"]
        )
        # The kernels pad both sides equally. This is the same if no window reaches the last row.
        if not -one["s"] < after - one["p"] <= 0:
            return None
    return _Native(
        (size["mb"], h["i"], w["i"], size["ic"]),
        (size["oc"], h["k"], w["k"], size["ic"] // g),
        (size["mb"], h["o"], w["o"], size["oc"]),
        (h["s"], w["s"]),
        (h["p"], w["p"]),
        (h["d"] + 1, w["d"] + 1),
        g,
    )


_DIRECTIONS = {
    "forward_training": ("forward",),
    "forward_inference": ("forward",),
    "backward_data": ("backward_input",),
    "backward_weights": ("backward_weight",),
    # One line of bestof may cover both gradients.
    "backward_data+backward_weights": ("backward_input", "backward_weight"),
}


def _native(line: Line) -> Iterator[Alternative]:
    """Yield the kernels of bestof that are as exact as float32."""
    one = _native_sizes(line)
    directions = _DIRECTIONS.get(line.direction)
    if one is None or directions is None:
        return
    geometry: Any = {"stride": one.stride, "padding": one.padding, "dilation": one.dilation}
    try:
        found = [
            kernels.conv2d_algorithms(
                one.x, one.w, groups=one.groups, direction=direction, **geometry
            )
            for direction in directions
        ]
    except KernelError:
        return
    moved = 4 * sum(int(np.prod(shape)) for shape in (one.x, one.w, one.y))
    for name, promise in found[0].items():
        if promise.algorithm.accuracy != "relaxed" and all(name in names for names in found):
            runs = partial(_bind_all, one, directions, name)
            yield Alternative("bestof", f"bestof {name}", moved, runs)


def _bind_all(one: _Native, directions: Sequence[str], algorithm: str) -> Callable[[], None]:
    runs = [_bind(one, direction, algorithm) for direction in directions]

    def run() -> None:
        for each in runs:
            each()

    return run


def _bind(one: _Native, direction: str, algorithm: str) -> Callable[[], None]:
    x, w, y = (np.ones(shape, np.float32) for shape in (one.x, one.w, one.y))
    geometry: Any = {"stride": one.stride, "padding": one.padding, "dilation": one.dilation}
    options: Any = {**geometry, "groups": one.groups, "algorithm": algorithm}

    if direction == "forward":
        return lambda: _ignore(kernels.conv2d(x, w, out=y, **options))
    if direction == "backward_input":
        return lambda: _ignore(kernels.conv2d_backward_input(y, w, one.x, out=x, **options))
    return lambda: _ignore(kernels.conv2d_backward_weight(y, x, one.w, out=w, **options))


def _ignore(_result: object) -> None:
    """Drop a result that was written to `out`."""
