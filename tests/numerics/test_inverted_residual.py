"""Inverted residuals: against float64, and with the bits of their layers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from activation import REFERENCES
from bfloat16 import UNIT, rounded, value_of
from fenced_memory import at_the_end
from guarded import address, guarded
from instruction_set import BFLOAT16_ISAS, forced
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError
from bestof.kernels.inverted_residual import DEPTHWISE, POINTWISE, has_rows_of_bfloat16
from bestof.kernels.problem import Activation

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Operand = Float32 | None
_EPS = float(np.finfo(np.float32).eps)


@pytest.fixture(params=BFLOAT16_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from forced(request.param)


@dataclass(frozen=True)
class Kind:
    """What the 1x1 convolutions multiply, and what tensors hold."""

    products: str = "float32"
    dtype: str = "float32"

    @property
    def pointwise(self) -> str:
        """The algorithm that packs the weights of 1x1 convolutions."""
        return POINTWISE[self.products]

    def runs(self) -> bool:
        """Whether the instruction set in use has the kernel."""
        return self.products == "float32" or has_rows_of_bfloat16()


FLOAT32, ROUNDED, BFLOAT16 = Kind(), Kind("bfloat16"), Kind("bfloat16", "bfloat16")
WIDENED = Kind(dtype="bfloat16")


@dataclass(frozen=True)
class Case:
    """x (n, h, w, c); c to e channels, a depthwise kernel of r x s, e to k; 0 leaves one out."""

    x: tuple[int, int, int, int]
    e: int
    kernel: tuple[int, int]
    k: int
    stride: tuple[int, int] = (1, 1)
    pads: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1))
    dilation: tuple[int, int] = (1, 1)
    residual: bool = False
    activations: tuple[Activation, Activation, Activation] = ("relu6", "relu6", None)


CASES = (
    Case((1, 14, 14, 24), 144, (3, 3), 24, residual=True),
    Case((2, 15, 17, 16), 96, (3, 3), 24, stride=(2, 2)),
    Case((1, 28, 14, 40), 240, (5, 5), 80, stride=(2, 2), pads=((2, 2), (2, 2))),
    Case((1, 9, 30, 3), 33, (7, 7), 65, pads=((3, 3), (3, 3)), activations=("silu",) * 3),
    # Ends inside vectors, panels, tiles and groups of results.
    Case((1, 5, 13, 7), 17, (3, 3), 9, activations=("hard_swish", "relu", "gelu")),
    Case((3, 4, 1, 1), 1, (3, 1), 1, pads=((0, 2), (0, 0))),
    Case((1, 1, 1, 5), 40, (3, 3), 5, residual=True),
    Case((1, 12, 11, 8), 64, (4, 2), 16, stride=(3, 1), pads=((2, 0), (0, 3))),
    Case((1, 20, 21, 8), 48, (3, 3), 8, dilation=(3, 2), pads=((3, 3), (2, 2)), residual=True),
    # The stride leaves the end of each row unread, and rows are as far apart as sets of L1.
    Case((1, 30, 30, 1024), 64, (3, 3), 8, stride=(4, 4), pads=((0, 0), (0, 0))),
    Case((2, 16, 18, 0), 32, (3, 3), 16),
    Case(
        (1, 16, 18, 0),
        50,
        (3, 3),
        70,
        stride=(2, 2),
        activations=(None, ("leaky_relu", 0.3), "relu"),
    ),
    Case((1, 19, 14, 6), 72, (5, 5), 0, pads=((2, 2), (2, 2))),
    Case((1, 19, 14, 6), 40, (3, 3), 0, stride=(2, 2), activations=("relu", "gelu_tanh", None)),
    Case((0, 8, 8, 4), 16, (3, 3), 4),
)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let parallel regions have so many threads."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    files = {line.split(maxsplit=5)[5] for line in lines if "/libgomp" in line}
    runtimes = [ctypes.CDLL(one) for one in files]
    before = [one.omp_get_max_threads() for one in runtimes]
    for one in runtimes:
        one.omp_set_num_threads(count)
    yield
    for one, number in zip(runtimes, before, strict=True):
        one.omp_set_num_threads(number)


def _operands(case: Case) -> tuple[Float32, list[Operand], list[Operand]]:
    """Return x, the weights and the biases."""
    rng = np.random.default_rng(3)
    n, h, w, c = case.x
    shapes = (
        (case.e, 1, 1, c) if c else None,
        (case.e, *case.kernel, 1),
        (case.k, 1, 1, case.e) if case.k else None,
    )
    x = rng.standard_normal((n, h, w, c or case.e), np.float32)
    weights = [None if one is None else rng.standard_normal(one, np.float32) for one in shapes]
    biases = [None if one is None else rng.standard_normal(one[0], np.float32) for one in shapes]
    return x, weights, biases


def _geometry(case: Case, place: int) -> dict[str, object]:
    if place != 1:
        return {}
    return {
        "stride": case.stride,
        "padding": case.pads,
        "dilation": case.dilation,
        "groups": case.e,
    }


def _by_layers(
    case: Case,
    x: Float32,
    weights: list[Operand],
    biases: list[Operand],
    residual: Operand,
    kind: Kind = FLOAT32,
) -> Float32:
    """Return what the kernels of the layers make of x."""
    for place, (w, bias) in enumerate(zip(weights, biases, strict=True)):
        if w is None:
            continue
        last = place == 2 or (place == 1 and weights[2] is None)
        x = np.asarray(
            kernels.conv2d(
                x,
                w,
                bias=bias,
                residual=residual if last else None,
                activation=case.activations[place],
                algorithm=DEPTHWISE if place == 1 else kind.pointwise,
                **_geometry(case, place),  # type: ignore[arg-type]
            )
        )
    return x


def _plan(
    case: Case, x: Float32, weights: list[Operand], kind: Kind = FLOAT32
) -> kernels.InvertedResidualPlan:
    first, middle, last = (None if one is None else one.shape for one in weights)
    assert middle is not None
    return kernels.InvertedResidualPlan(
        x.shape,
        first,
        middle,
        last,
        stride=case.stride,
        padding=case.pads,
        dilation=case.dilation,
        activations=case.activations,
        products=kind.products,
        dtype=kind.dtype,
    )


def _run(
    case: Case,
    x: Float32,
    weights: list[Operand],
    biases: list[Operand],
    residual: Operand,
    kind: Kind = FLOAT32,
) -> Float32:
    plan = _plan(case, x, weights, kind)
    halves = kind.dtype == "bfloat16"
    given = at_the_end(rounded(x)) if halves and x.size else x
    added = rounded(residual) if halves and residual is not None else residual

    def packed(place: int, algorithm: str, groups: int = 1) -> kernels.PackedWeights | None:
        w = weights[place]
        if w is None:
            return None
        held = rounded(w) if halves else w
        return kernels.pack_weights(held, algorithm, groups=groups, dtype=kind.dtype)

    filters = packed(1, DEPTHWISE, case.e)
    assert filters is not None
    with guarded(*plan.y_shape, dtype=np.uint16 if halves else np.float32) as y:
        plan.run(
            given.ctypes.data,
            (packed(0, kind.pointwise), filters, packed(2, kind.pointwise)),
            (address(biases[0]), address(biases[1]), address(biases[2])),
            y.ctypes.data,
            address(added),
        )
        return value_of(y.copy()) if halves else np.asarray(y.copy(), np.float32)


def _residual(case: Case, shape: tuple[int, ...]) -> Operand:
    rng = np.random.default_rng(4)
    return rng.standard_normal(shape, np.float32) if case.residual else None


def _reference(
    case: Case,
    x: Float32,
    weights: list[Operand],
    biases: list[Operand],
    residual: Operand,
    kind: Kind = FLOAT32,
) -> tuple[Float64, Float64]:
    """Return the results in float64, and a bound of the error of each.

    A sum of n terms rounds n times at most, each time by half a unit of the sum of the magnitudes.
    Errors of its operands pass through it by the magnitudes of the weights. Operands of 1x1
    convolutions, and results of bfloat16, are rounded to bfloat16 unless they are such numbers.
    """
    value, error = x.astype(np.float64), np.zeros(x.shape)
    for place, (w, bias) in enumerate(zip(weights, biases, strict=True)):
        if w is None or bias is None:
            continue
        exact = w.astype(np.float64)
        off = np.zeros(exact.shape)  # of the weights
        if kind.products == "bfloat16" and place != 1:
            if kind.dtype == "float32":
                off = UNIT * abs(exact)
            if kind.dtype == "float32" or place == 2:
                error = error + UNIT * (abs(value) + error)
        sums = _product(case, place, value, exact) + bias
        size = _product(case, place, abs(value) + error, abs(exact) + off) + abs(bias)
        error = _product(case, place, error, abs(exact) + off) + _product(
            case, place, abs(value), off
        )
        if residual is not None and place == 2:
            sums, size = sums + residual, size + abs(residual)
        terms = w[0].size + 3
        reference = REFERENCES[case.activations[place]]
        value = reference.value(sums)
        error = reference.steepest * (error + _EPS / 2 * terms * size) + 8 * _EPS * abs(value)
    if kind.dtype == "bfloat16":
        error = error + UNIT * (abs(value) + error)
    return value, error


def _product(case: Case, place: int, x: Float64, w: Float64) -> Float64:
    """Return a convolution in float64."""
    if place != 1:
        return np.asarray(x @ w[:, 0, 0, :].T)
    (top, bottom), (left, right) = case.pads
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    (r, s), (dy, dx), (sy, sx) = case.kernel, case.dilation, case.stride
    rows = (padded.shape[1] - dy * (r - 1) - 1) // sy + 1
    columns = (padded.shape[2] - dx * (s - 1) - 1) // sx + 1
    found = np.zeros((len(x), rows, columns, x.shape[3]))
    for i in range(r):
        for j in range(s):
            met = padded[:, i * dy :, j * dx :][:, : sy * rows : sy, : sx * columns : sx]
            found += met[:, :rows, :columns] * w[:, i, j, 0]
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", [FLOAT32, ROUNDED], ids=str)
def test_results_are_right_and_have_the_bits_of_the_layers(
    isa: str, case: Case, threads: int, kind: Kind
) -> None:
    if not kind.runs():
        pytest.skip("tile registers multiply layers")
    x, weights, biases = _operands(case)
    x = at_the_end(x) if x.size else x
    residual = _residual(case, _plan(case, x, weights).y_shape)
    with _threads(threads):
        got = _run(case, x, weights, biases, residual, kind)
        wanted = _by_layers(case, x, weights, biases, residual, kind)
    right, bound = _reference(case, x, weights, biases, residual, kind)
    assert (abs(got - right) <= bound).all()
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", [WIDENED, BFLOAT16], ids=str)
def test_results_of_bfloat16_are_right(isa: str, case: Case, threads: int, kind: Kind) -> None:
    if not kind.runs():
        pytest.skip("tile registers multiply layers")
    x, weights, biases = _operands(case)
    x = value_of(rounded(x))
    weights = [None if one is None else value_of(rounded(one)) for one in weights]
    residual = _residual(case, _plan(case, x, weights).y_shape)
    residual = None if residual is None else value_of(rounded(residual))
    with _threads(threads):
        got = _run(case, x, weights, biases, residual, kind)
    right, bound = _reference(case, x, weights, biases, residual, kind)
    assert (abs(got - right) <= bound).all()


def test_without_biases(isa: str) -> None:
    case = CASES[1]
    x, weights, _ = _operands(case)
    none: list[Operand] = [None, None, None]
    got = _run(case, x, weights, none, None)
    np.testing.assert_array_equal(got, _by_layers(case, x, weights, none, None))


@pytest.mark.parametrize("kind", [FLOAT32, ROUNDED], ids=str)
def test_nan_and_infinity_pass_as_through_the_layers(kind: Kind) -> None:
    if not kind.runs():
        pytest.skip("tile registers multiply layers")
    case = CASES[0]
    x, weights, biases = _operands(case)
    x[0, 3, 4, 5], x[0, 9, 9, 0] = np.nan, np.inf
    got = _run(case, x, weights, biases, x, kind)
    np.testing.assert_array_equal(got, _by_layers(case, x, weights, biases, x, kind))
    assert 0 < np.isnan(got).sum() < got.size


def test_what_cannot_be_computed_is_refused() -> None:
    def plan(*shapes: tuple[int, ...] | None, **options: object) -> None:
        kernels.InvertedResidualPlan((1, 8, 8, 4), *shapes, **options)  # type: ignore[arg-type]

    with pytest.raises(KernelError, match="1x1 convolution"):
        plan((16, 3, 3, 4), (16, 3, 3, 1), None)
    with pytest.raises(KernelError, match="more than a gigabyte"):
        kernels.InvertedResidualPlan(
            (1, 8, 64, 1024), None, (1024, 3, 3, 1), (8, 1, 1, 1024), stride=1 << 14, padding=1
        )
    with pytest.raises(KernelError, match="depthwise"):
        plan((16, 1, 1, 4), (32, 3, 3, 1), None)
    with pytest.raises(KernelError):
        plan((16, 1, 1, 5), (16, 3, 3, 1), None)
    with pytest.raises(KernelError):
        plan((16, 1, 1, 4), (16, 9, 9, 1), None)
    with pytest.raises(KernelError, match="products"):
        plan((16, 1, 1, 4), (16, 3, 3, 1), None, products="float16")
    with pytest.raises(KernelError, match="padding"):
        plan((16, 1, 1, 4), (16, 3, 3, 1), None, padding=((-1, 1), (1, 1)))


def test_bad_operands_are_refused() -> None:
    case = CASES[0]
    x, weights, _ = _operands(case)
    plan = _plan(case, x, weights)
    first, middle, last = weights
    assert first is not None
    assert middle is not None
    assert last is not None
    packed = (
        kernels.pack_weights(first, "convgemm"),
        kernels.pack_weights(middle, "depthwise", groups=case.e),
        kernels.pack_weights(last, "convgemm"),
    )
    at, none = x.ctypes.data, (0, 0, 0)
    for wrong in ((None, *packed[1:]), (*packed[:2], None), (packed[2], *packed[1:])):
        with pytest.raises(KernelError):
            plan.run(at, wrong, none, at)
    with pytest.raises(KernelError):
        plan.run(0, packed, none, at)
    with pytest.raises(KernelError):
        plan.run(at, ("no weights", *packed[1:]), none, at)  # type: ignore[arg-type]
