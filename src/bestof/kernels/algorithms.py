"""The table of convolution algorithms: one row each, the same for every instruction set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal

from bestof.kernels import _native


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """A bound of the error against float64, relative to the rms of the result.

    `rms` bounds the rms of the error, `maximum` its largest magnitude.
    """

    rms: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A convolution algorithm, as its row of `native/conv/algorithms.inc` describes it.

    shapes: the convolutions that it is written for: "any"; "kernel" (one `kernel` size and one
    `stride`, neither dilation nor groups); "grouped kernel" (the same with more than one group);
    "depthwise"; "few rows" (linear layers of at most eight pixels). kernel and stride are None
    where a row takes several.
    directions: the passes that it has.
    error: of its sums, up to 512 channels; the bound grows with the square root of the channels.
    rounds: the float32 operands that it rounds to bfloat16. rounding: the error that this adds.
    accuracy: the strictest level of `bestof.torch` that allows it.
    transforms: whether it multiplies transformed operands. Results of the others are plain sums of
    products, so each element also obeys a bound of its own.
    reach: how far NaN, infinity or the rounding of one huge element can reach: "own", the results
        that read it, or "tile", the results of a tile or of some rows.
    pools: whether its forward pass can yield the largest of each 2x2 results.
    pitches: whether its forward pass can write a part of the channels of wider pixels.
    dtypes: the tensors that it takes.
    parts: whether it multiplies float32 as parts of bfloat16, for tile registers.
    emulated: whether the instruction set in use lacks the products that it is made of. Then its
    results are the same, but it is slower than the algorithms of float32.
    eager: whether PyTorch programs should try it for each convolution.
    linear: whether linear layers should try it.
    planes: whether its forward pass also reads x in channels first.
    """

    name: str
    shapes: Literal["any", "kernel", "grouped kernel", "depthwise", "few rows"]
    kernel: tuple[int, int] | None
    stride: int | None
    directions: tuple[str, ...]
    error: ErrorBound
    rounds: Literal["nothing", "weights", "both"]
    rounding: ErrorBound
    accuracy: Literal["float32", "relaxed"]
    transforms: bool
    reach: Literal["own", "tile"]
    pools: bool
    pitches: bool
    dtypes: tuple[str, ...]
    parts: bool
    emulated: bool
    eager: bool
    linear: bool
    planes: bool


@dataclass(frozen=True, slots=True)
class Promise:
    """What an algorithm promises for one problem and one pass.

    algorithm: its row of the table.
    error_bound, maximum_bound: bounds of the rms and of the largest magnitude of the error, both
    relative to the rms of the result. Where the row rounds operands to bfloat16, both hold for
    random operands and many results. For all operands, each element errs by at most 2^-8 of the sum
    of the magnitudes of its products if only the weights are rounded, and by twice that plus 2^-16
    if both operands are. bfloat16 tensors add 2^-8 of the result. The error of the float32 sums
    comes on top.
    scratch_bytes: memory beside the arguments, packed weights included.
    flops: multiplications and additions that it performs, its transforms left out.
    packs: whether it reads weights in a layout of its own, which `pack_weights` prepares.
    pools: whether it can yield the largest of each 2x2 results in their place (`Conv2dPlan`).
    pitches: whether it can write a part of the channels of wider pixels (`Conv2dPlan`).
    """

    algorithm: Algorithm
    error_bound: float
    maximum_bound: float
    scratch_bytes: int
    flops: float
    packs: bool
    pools: bool
    pitches: bool


def algorithms() -> Mapping[str, Algorithm]:
    """Return the rows of the table by their names, as the instruction set in use has them."""
    return _rows(_native.isa())


@cache
def _rows(_isa: str) -> Mapping[str, Algorithm]:
    return MappingProxyType({row.name: _algorithm(row) for row in _native.rows()})


def _algorithm(row: _native.Row) -> Algorithm:
    fixed = row.shapes in ("kernel", "grouped kernel")
    return Algorithm(
        name=row.name,
        shapes=row.shapes,
        kernel=(row.kernel_height, row.kernel_width) if fixed else None,
        stride=row.stride if fixed else None,
        directions=tuple(row.directions),
        error=ErrorBound(row.error.rms, row.error.maximum),
        rounds=row.rounds,
        rounding=ErrorBound(row.rounding.rms, row.rounding.maximum),
        accuracy=row.accuracy,
        transforms=row.transforms,
        reach="tile" if row.transforms else "own",
        pools=row.pools,
        pitches=row.pitches,
        dtypes=tuple(operands for operands, _result, _sums in row.dtypes),
        parts=row.parts,
        emulated=row.emulated,
        eager=row.eager,
        linear=row.linear,
        planes=row.planes,
    )


def promises_of(problem: _native.Problem, direction: str, threads: int) -> Mapping[str, Promise]:
    """Return what each algorithm that applies to a checked problem promises, by its name."""
    rows = algorithms()
    return MappingProxyType(
        {
            one.name: Promise(
                rows[one.name],
                one.error.rms,
                one.error.maximum,
                one.scratch_bytes,
                one.flops,
                one.packs,
                one.pools,
                one.pitches,
            )
            for one in _native.promises(problem, direction, threads)
        }
    )
