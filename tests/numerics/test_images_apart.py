"""Winograd's algorithms on images of a batch that differ by orders of magnitude.

A plan that looks at its operands may compute them only if each result is as exact as promised:
relative to the results of its own image, and where a huge element lies, to those that do not read
it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import convolution
import numpy as np
import pytest
from bfloat16 import Bits, rounded, value_of
from convolution import Case, Float64
from numpy.typing import NDArray

from bestof import kernels

Array = NDArray[np.float32]
TILES = {name: row for name, row in kernels.algorithms().items() if row.reach == "tile"}
DIRECTIONS = ("forward", "backward_input", "backward_weight")
HUGE = np.float32(2.0**30)
EXTENTS = ((2, 2), (3, 4), (4, 4), (5, 5), (9, 10), (16, 17))
FAULTS = tuple(2.0**exponent for exponent in (*range(2, 9), 30))


def _cases(algorithm: str, direction: str) -> list[Case]:
    row = TILES[algorithm]
    assert row.kernel is not None
    assert row.stride is not None
    (r, s), stride = row.kernel, row.stride
    groups = 2 if row.shapes == "grouped kernel" else 1
    found = [
        Case(
            (3, height, width, 16),
            (8, r, s, 16 // groups),
            (stride, stride),
            ((r // 2, (r - 1) // 2), (s // 2, (s - 1) // 2)),
            groups=groups,
        )
        for height, width in EXTENTS
    ]
    return [
        case
        for case in found
        if min(case.y_shape[1:3]) > 1
        and algorithm
        in kernels.conv2d_algorithms(
            case.x_shape, case.w_shape, direction=direction, **case.geometry
        )
    ]


ALL = [(name, way) for name in TILES for way in DIRECTIONS if _cases(name, way)]
AS_A_BATCH = [("winograd4_1x7", "backward_weight"), ("winograd4_7x1", "backward_weight")]
PASSES = [one for one in ALL if one not in AS_A_BATCH]


@cache
def _operands(case: Case, direction: str) -> tuple[Array, Array]:
    """What a pass reads. The first one has images, and so has the second of a weight gradient."""
    generator = np.random.default_rng(7)
    shapes = {"x": case.x_shape, "w": case.w_shape, "grad": case.y_shape}
    made = {name: generator.normal(size=of).astype(np.float32) for name, of in shapes.items()}
    names = {
        "forward": ("x", "w"),
        "backward_input": ("grad", "w"),
        "backward_weight": ("grad", "x"),
    }
    first, second = names[direction]
    return made[first], made[second]


def _run(algorithm: str, direction: str, case: Case, first: Array, second: Array) -> Array | None:
    """The result; None if the plan refuses the operands."""
    shapes = {
        "forward": case.y_shape,
        "backward_input": case.x_shape,
        "backward_weight": case.w_shape,
    }
    out = np.full(shapes[direction], np.nan, np.float32)
    plan = kernels.Conv2dPlan(
        case.x_shape,
        case.w_shape,
        **case.geometry,  # type: ignore[arg-type]
        algorithm=algorithm,
        direction=direction,
        looks=True,
    )
    ran = plan.run(first.ctypes.data, second.ctypes.data, out.ctypes.data)
    assert ran or np.isnan(out).all()
    return out if ran else None


def _exact(direction: str, case: Case, first: Array, second: Array) -> Float64:
    return getattr(convolution, direction)(case, first, second)  # type: ignore[no-any-return]


def _by_image(factors: tuple[float, ...], like: Array) -> Array:
    return like * np.array(factors, np.float32).reshape(-1, 1, 1, 1)


def _rms(values: Float64) -> float:
    return float(np.sqrt(np.square(values).mean()))


def _assert_promised(algorithm: str, got: Array, right: Float64) -> None:
    promise, error = TILES[algorithm].error, got - right
    assert _rms(error) <= promise.rms * _rms(right)
    assert np.abs(error).max() <= promise.maximum * _rms(right)


@pytest.mark.parametrize(("algorithm", "direction"), PASSES)
def test_images_may_differ_by_any_factor(algorithm: str, direction: str) -> None:
    apart = (2.0**30, 1.0, 2.0**-30)
    for case in _cases(algorithm, direction):
        first, second = _operands(case, direction)
        of_weight = direction == "backward_weight"
        for other in (apart, apart[::-1], (1.0,) * 3) if of_weight else (None,):
            one = _by_image(apart, first)
            two = second if other is None else _by_image(other, second)
            got = _run(algorithm, direction, case, one, two)
            assert got is not None, case
            right = _exact(direction, case, one, two)
            if of_weight:
                _assert_promised(algorithm, got, right)
            else:
                for image in range(3):
                    _assert_promised(algorithm, got[image], right[image])


@pytest.mark.parametrize(
    "algorithm", [name for name, direction in PASSES if direction == "backward_weight"]
)
def test_a_weight_gradient_is_as_small_as_its_channels(algorithm: str) -> None:
    for case in _cases(algorithm, "backward_weight"):
        grad, x = (operand.copy() for operand in _operands(case, "backward_weight"))
        grad[0] *= HUGE
        grad[..., 1] /= HUGE
        x[..., 2] /= HUGE
        got = _run(algorithm, "backward_weight", case, grad, x)
        right = _exact("backward_weight", case, grad, x)
        assert got is not None, case
        for filters, channels in ((1, 2), (1, 3), (0, 2), (0, 3)):
            part = np.s_[filters, :, :, channels]
            promised = TILES[algorithm].error.maximum * _rms(right[part])
            assert np.abs(got[part] - right[part]).max() <= promised, (case, part)


@pytest.mark.parametrize(("algorithm", "direction"), AS_A_BATCH)
def test_weight_gradients_of_seven_taps_compare_images(algorithm: str, direction: str) -> None:
    for case in _cases(algorithm, direction):
        grad, x = _operands(case, direction)
        for apart in ((_by_image((HUGE, 1.0, 1.0), grad), x), (grad, _by_image((1, HUGE, 1), x))):
            assert _run(algorithm, direction, case, *apart) is None
        assert _run(algorithm, direction, case, HUGE * grad, x) is not None


def _places(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    _, height, width, channels = shape
    return (0, 0, 0, 0), (0, height - 1, width // 2, channels - 1), (0, height // 2, width // 2, 1)


@pytest.mark.long(every=5)
@pytest.mark.parametrize(("algorithm", "direction"), PASSES)
def test_an_element_of_any_size_reaches_only_results_that_read_it(
    algorithm: str, direction: str
) -> None:
    """In image 0, beside images that are far larger or smaller."""
    ran = 0
    for case in _cases(algorithm, direction):
        healthy = _operands(case, direction)
        for operand in range(2 if direction == "backward_weight" else 1):
            for beside, place in product((2.0**-30, 2.0**30), _places(healthy[operand].shape)):
                operands = list(healthy)
                operands[operand] = _by_image((1.0, beside, beside), healthy[operand])
                ran += _ran_by_fault(algorithm, direction, case, operands, operand, place)
    assert ran > 20


def _ran_by_fault(
    algorithm: str,
    direction: str,
    case: Case,
    operands: list[Array],
    operand: int,
    place: tuple[int, ...],
) -> int:
    """Enlarge an element until the plan refuses; return how often it ran, and as promised."""
    right, healthy = _exact(direction, case, *operands), operands[operand]
    far, ran = None, 0
    for fault in FAULTS:
        faulty = list(operands)
        faulty[operand] = healthy.copy()
        faulty[operand][place] = fault
        got = _run(algorithm, direction, case, *faulty)
        if got is None:
            continue
        ran += 1
        if far is None:
            far = _exact(direction, case, *faulty) == right
        for image in (np.s_[:],) if direction == "backward_weight" else (0, 1, 2):
            scale = _rms(right[image][far[image]]) if far[image].any() else 0.0
            if scale:
                error = np.abs(got[image] - right[image])[far[image]].max()
                assert error <= TILES[algorithm].error.maximum * scale, (case, place, fault)
    return ran


@pytest.mark.parametrize(("algorithm", "direction"), PASSES)
def test_an_image_of_zeros_and_one_of_faults(algorithm: str, direction: str) -> None:
    for case in _cases(algorithm, direction):
        first, second = (operand.copy() for operand in _operands(case, direction))
        first[1] = 0
        first[2] *= HUGE
        got = _run(algorithm, direction, case, first, second)
        assert got is not None
        _assert_promised(algorithm, got, _exact(direction, case, first, second))
        if direction != "backward_weight":
            assert not got[1].any()
        for bad in (np.nan, -np.nan, np.inf, 1e20):
            for image in range(3):
                faulty = first.copy()
                faulty[image, -1, -1, -1] = bad
                assert _run(algorithm, direction, case, faulty, second) is None, (case, bad, image)


def test_images_of_one_pixel_are_compared_with_each_other() -> None:
    """Taps beside the middle pair no pixels of such images: their gradients are 0."""
    case = Case((3, 1, 1, 16), (8, 3, 3, 16), padding=((1, 1), (1, 1)))
    grad, x = _operands(case, "backward_weight")
    assert _run("winograd4", "backward_weight", case, grad, x) is not None
    assert _run("winograd4", "backward_weight", case, _by_image((HUGE, 1, 1), grad), x) is None
    assert _run("winograd4", "backward_weight", case, _by_image((1, 0, 0), grad), x) is None
    alone = Case((1, 1, 1, 16), case.w_shape, padding=case.padding)
    assert (
        _run("winograd4", "forward", alone, HUGE * x[:1], _operands(alone, "forward")[1])
        is not None
    )


def test_operands_of_a_weight_gradient_pass_by_the_same_measure() -> None:
    """The gradients pass as a batch, the images one by one. Together they would not."""
    case = Case((4, 32, 32, 8), (8, 3, 3, 8), padding=((1, 1), (1, 1)))
    grad, x = (operand.copy() for operand in _operands(case, "backward_weight"))
    grad[0] /= 2.0**10
    grad[0, 0, 0] *= 2.0**10
    run = _run("winograd4", "backward_weight", case, grad, x)
    assert run is not None
    _assert_promised("winograd4", run, _exact("backward_weight", case, grad, x))
    x[0] *= HUGE
    assert _run("winograd4", "backward_weight", case, grad, x) is None
    grad[0, 0, 0] /= 2.0**10
    assert _run("winograd4", "backward_weight", case, grad, x) is not None


@pytest.mark.parametrize("images", [1, 3, 300])
def test_a_pixel_is_seen_in_every_image_by_any_number_of_threads(images: int) -> None:
    """Threads share the rows of an image, and sums are taken over 256 images at once."""
    case = Case((images, 8, 12, 16), (8, 3, 3, 16), padding=((1, 1), (1, 1)))
    x, w = _operands(case, "forward")
    apart = (
        x * np.float32(2) ** (np.arange(images, dtype=np.float32) % 60 - 30)[:, None, None, None]
    )
    assert _run("winograd4", "forward", case, apart, w) is not None
    for image in {0, images // 2, images - 1}:
        for place in ((0, 0), (7, 11), (4, 5)):
            faulty = apart.copy()
            faulty[image, place[0], place[1]] *= 2.0**9
            assert _run("winograd4", "forward", case, faulty, w) is None, (image, place)


@pytest.mark.parametrize(
    "algorithm", [name for name, row in TILES.items() if "bfloat16" in row.dtypes]
)
def test_images_of_bfloat16_are_looked_at_as_if_they_were_widened(algorithm: str) -> None:
    """Pixels of few channels end inside a vector, and those of many are several vectors."""

    def runs(case: Case, x: Bits, w: Bits) -> bool:
        out = np.full(case.y_shape, 0x7FC1, np.uint16)
        plan = kernels.Conv2dPlan(
            case.x_shape,
            case.w_shape,
            **case.geometry,  # type: ignore[arg-type]
            algorithm=algorithm,
            dtype="bfloat16",
            looks=True,
        )
        ran = plan.run(x.ctypes.data, w.ctypes.data, out.ctypes.data)
        assert ran != (out == 0x7FC1).all()
        assert not ran or not np.isnan(value_of(out)).any()
        return bool(ran)

    answers = set()
    for one in _cases(algorithm, "forward"):
        for channels in (3, 16, 90):
            case = replace(
                one,
                x_shape=(*one.x_shape[:3], channels),
                w_shape=(*one.w_shape[:3], channels),
            )
            x, w = (rounded(given) for given in _operands(case, "forward"))
            for fault in (1.0, *FAULTS, np.nan, np.inf):
                faulty = x.copy()
                faulty[1, -1, -1, -1] = np.float32(fault).view(np.uint32) >> 16
                ran = runs(case, faulty, w)
                wide = value_of(faulty), value_of(w)
                assert ran == (_run(algorithm, "forward", case, *wide) is not None), (case, fault)
                answers.add((ran, bool(np.isfinite(fault))))
    assert answers == {(True, True), (False, True), (False, False)}
