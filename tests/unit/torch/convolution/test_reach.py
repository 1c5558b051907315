"""How far one element's fault reaches: no farther than by PyTorch's own kernel, at the default
accuracy. Rows that could reach farther look at their operands first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as integration
from bestof.kernels import Conv2dPlan, algorithms
from bestof.selection import Fixed, use_policy
from bestof.torch.backends.cuda.device import CUDA
from bestof.torch.dispatch.overrides import convolution_override
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.passes import PASSES, passes_on
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import pytorch_conv
from bestof.torch.ops.product.product import Product
from bestof.torch.plan import optimized as optimizing
from bestof.torch.plan.run.program import Program

FAULTS = {"NaN": torch.nan, "infinity": torch.inf, "1e9": 1e9, "-1e6": -1e6, "700": 700.0}
GEOMETRIES = {
    "3x3": ((2, 16, 23, 23), (16, 16, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "3x3 without padding": ((1, 16, 26, 24), (24, 16, 3, 3), (1, 1), (0, 0), (1, 1), 1),
    "5x5": ((1, 16, 24, 24), (16, 16, 5, 5), (1, 1), (2, 2), (1, 1), 1),
    "1x7": ((1, 16, 20, 24), (16, 16, 1, 7), (1, 1), (0, 3), (1, 1), 1),
    "7x1": ((1, 16, 24, 20), (16, 16, 7, 1), (1, 1), (3, 0), (1, 1), 1),
    "3x3 of stride 2": ((1, 16, 27, 27), (16, 16, 3, 3), (2, 2), (1, 1), (1, 1), 1),
    "7x7 of stride 2": ((1, 3, 40, 40), (16, 3, 7, 7), (2, 2), (3, 3), (1, 1), 1),
    "11x11": ((1, 4, 40, 40), (8, 4, 11, 11), (1, 1), (5, 5), (1, 1), 1),
    "grouped": ((1, 16, 20, 20), (16, 4, 5, 5), (1, 1), (2, 2), (1, 1), 4),
    "dilated": ((1, 8, 20, 20), (8, 8, 3, 3), (1, 1), (2, 2), (2, 2), 1),
    "1x1": ((1, 32, 16, 16), (16, 32, 1, 1), (1, 1), (0, 0), (1, 1), 1),
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(geometry: str, direction: str) -> tuple[ConvProblem, tuple[Any, ...]]:
    x_shape, w_shape, *rest = GEOMETRIES[geometry]
    x, w = random(*x_shape), random(*w_shape, seed=1)
    problem = ConvProblem.of(x, w, False, *rest)  # type: ignore[arg-type]  # as they stand
    gradient = random(*problem.output_shape, seed=2)
    tensors: dict[str, tuple[Any, ...]] = {
        "forward": (x, w, None),
        "input gradient": (gradient, w),
        "weight gradient": (gradient, x),
    }
    return problem, tensors[direction]


def places(image: Tensor) -> list[tuple[int, ...]]:
    """A corner, the rim, and the middle."""
    n, c, h, w = image.shape
    return [(0, 0, 0, 0), (n - 1, c - 1, h - 1, w // 2), (0, c // 2, h // 2, w // 2)]


@pytest.mark.long(every=2)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("catalogue", PASSES, ids=lambda one: one.direction)
def test_no_row_reaches_farther_than_pytorchs_own(
    catalogue: Conv2dPass, geometry: str, fault: str
) -> None:
    problem, healthy = operands(geometry, catalogue.direction)
    by, first = pytorch_conv(), catalogue.rows[0]
    wide = problem._replace(dtype="float64")

    def exact(tensors: Sequence[Tensor | None]) -> Tensor:
        doubles = [None if one is None else one.double() for one in tensors]
        return first.function(by, wide, *doubles)

    faulty_operands = (0, 1) if catalogue.direction == "weight gradient" else (0,)
    for operand in faulty_operands:
        for place in places(healthy[operand]):
            tensors = list(healthy)
            tensors[operand] = healthy[operand].clone()
            tensors[operand][place] = FAULTS[fault]
            right, plain = exact(healthy), first.function(by, problem, *tensors)
            touched = list(healthy)
            touched[operand] = healthy[operand].clone()
            touched[operand][place] += 1.0
            reads = exact(touched) != right
            may_read = reads
            if catalogue is PASSES[2]:
                # Some of PyTorch's own weight gradients multiply NaN by the padding. It then
                # reaches taps that meet only the padding. So may others.
                may_read = reads.any(3).any(2)[..., None, None].expand_as(reads)
            far = ~may_read & plain.isfinite()
            for row in catalogue.applying(problem):
                got = row.function(by, problem, *tensors)
                spread = ~got.isfinite() & plain.isfinite() & ~may_read
                assert not spread.any(), (row.name, place)
                assert not (got.isfinite() & reads & ~plain.isfinite()).any(), (row.name, place)
                if not far.any():
                    continue
                scale = float(right[far].square().mean().sqrt())
                allowed = catalogue.bound(row, problem).maximum * scale
                error = float((got - right)[far].abs().max())
                assert error <= allowed, (row.name, place, error, allowed)


def test_each_row_says_how_far_it_reaches() -> None:
    for catalogue in PASSES:
        for row in catalogue.rows:
            if "winograd" in row.name:
                assert row.reach == "tile"
            else:
                assert row.reach == ("image" if row.name == "fft" else "own")
    assert {row.reach for row in Product().rows} == {"own"}
    tiles = {name for name, row in algorithms().items() if row.reach == "tile"}
    assert tiles == {name for name in algorithms() if name.startswith("winograd")}


def test_fft_does_not_look_on_cuda_so_it_is_relaxed_there() -> None:
    problem, _ = operands("11x11", "forward")
    there = problem._replace(device="a model")
    for catalogue in passes_on(CUDA):
        names = {row.name for row in catalogue.applying(there)}
        assert "fft" not in names
        relaxed = {row.name for row in catalogue.applying(there._replace(accuracy="relaxed"))}
        assert "fft" in relaxed


def runs(x: Tensor, algorithm: str = "winograd4") -> bool:
    n, h, w, c = x.shape
    weight, y = random(8, 3, 3, c), torch.full((n, h, w, 8), torch.nan)
    plan = Conv2dPlan(x.shape, weight.shape, padding=1, algorithm=algorithm, looks=True)
    ran = plan.run(x.data_ptr(), weight.data_ptr(), y.data_ptr())
    assert ran or bool(y.isnan().all())  # nothing was written
    return ran


IMAGE = (2, 32, 32, 24)


@pytest.mark.parametrize(
    "usual",
    [
        random(*IMAGE),
        random(*IMAGE).relu(),
        (random(*IMAGE) - 2).relu(),
        random(*IMAGE).abs() * 255,
        random(*IMAGE) + 1e4,
        random(*IMAGE) * 1e12,
        random(*IMAGE) * 1e-12,
        random(*IMAGE).exp() ** 2,
        torch.zeros(IMAGE),
        torch.cat([random(1, 32, 32, 24), 20 * random(1, 32, 32, 24)]),
        random(1, 3, 5, 7),
    ],
    ids=lambda x: f"{x.numel()} {float(x.abs().max()):.3g}",
)
def test_usual_images_run(usual: Tensor) -> None:
    assert runs(usual)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("value", [torch.nan, -torch.nan, torch.inf, -torch.inf, 1e20, 1e9, 1e4])
def test_elements_that_stand_out_are_seen_anywhere(value: float, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for shape in (IMAGE, (1, 9, 10, 3), (1, 13, 6, 17)):
            for place in ((0, 0, 0, 0), tuple(extent - 1 for extent in shape), (0, 5, 4, 1)):
                x = random(*shape)
                x[place] = value
                assert not runs(x)
                assert runs(x, "direct")
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("extents", [(2, 2), (3, 4), (4, 4), (5, 2)])
def test_elements_that_stand_out_are_seen_in_small_images(extents: tuple[int, int]) -> None:
    x = random(1, *extents, 24)
    assert runs(x)
    for y, column in ((0, 0), (1, 1), (extents[0] - 1, 0)):
        faulty = x.clone()
        faulty[0, y, column, 5] = 1e4
        assert not runs(faulty)


def test_many_elements_that_stand_out_are_seen_too() -> None:
    x = random(*IMAGE)
    x[:, 4:15, 4:15] *= 1e6
    assert not runs(x)
    impulse = torch.zeros(IMAGE)
    impulse[0, 16, 16, 3] = 1e9
    assert not runs(impulse)


class Order:
    def __init__(self, name: str) -> None:
        self._name = name

    def start(self, alternatives: Sequence[str]) -> Any:
        name = self._name if self._name in alternatives else alternatives[0]
        return Fixed(name).start(alternatives)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_settled_call_in_cpp_looks_too(fault: str, last: bool) -> None:
    x, weight = random(1, 32, 24, 24), random(32, 32, 3, 3, seed=1)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    faulty = x.clone()
    faulty[0, 3, 12, 12] = FAULTS[fault]
    plain = torch.conv2d(faulty, weight, padding=1)
    use_policy(Order("native winograd4"))
    integration.enable()
    with torch.no_grad():
        for _ in range(6):
            usual = torch.conv2d(x, weight, padding=1)
        override = convolution_override()
        assert override is not None
        (problem,) = override.layer.forward_pass.report().problems
        assert problem.decision == "native winograd4"
        for _ in range(3):
            got = torch.conv2d(faulty, weight, padding=1)
            far = torch.ones_like(got, dtype=torch.bool)
            far[:, :, 11:14, 11:14] = False
            assert torch.equal(got.isfinite(), plain.isfinite())
            torch.testing.assert_close(got[far], plain[far], rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(torch.conv2d(x, weight, padding=1), usual)


def test_calls_that_a_row_refuses_are_counted_and_save_nothing() -> None:
    x, weight = random(1, 32, 24, 24), random(32, 32, 3, 3, seed=1)
    faulty = x.clone()
    faulty[0, 3, 12, 12] = 1e9
    use_policy(Order("native winograd4"))
    integration.enable()
    override = convolution_override()
    assert override is not None
    with torch.no_grad():
        for _ in range(40):
            torch.conv2d(x, weight, padding=1)
        for _ in range(7):
            torch.conv2d(faulty, weight, padding=1)
    forward = override.layer.forward_pass
    (problem,) = forward.report().problems
    assert problem.refused_calls == 7
    assert problem.settled_calls > 7
    (row,) = integration.summary().passes
    assert (row.refused, row.calls) == (7, 47)
    (met,) = forward.met()  # type: ignore[misc]  # the override tells
    told = str(forward.explain(met, x, weight, None))
    assert "native winograd4 refused 7 of " in told


class Block(nn.Module):
    """Two convolutions; the second one adds what the first one read."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(32, 32, 3, padding=1)
        self.two = nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(x + self.two(nn.functional.relu(self.one(x))))


MODELS: dict[str, tuple[nn.Module, int]] = {
    "added": (Block(), 1),
    "pooled": (nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)), 2),
}


@pytest.mark.parametrize("algorithm", ["winograd2", "winograd4"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("fault", FAULTS)
def test_plans_look_too(
    fault: str, kind: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settle(program: Program, _: Any) -> None:
        for choice in program.choices.values():
            choice.settle(algorithm)

    monkeypatch.setattr(optimizing, "tune", settle)
    model, side = MODELS[kind]
    x = random(1, 32, 28, 28)
    faulty = x.clone()
    faulty[0, 3, 14, 14] = FAULTS[fault]
    with torch.no_grad():
        fast = integration.optimize(model.eval(), (x,))
        got, plain = fast(faulty), model(faulty)
        assert torch.equal(got.isfinite(), plain.isfinite())
        far = torch.ones_like(got, dtype=torch.bool)
        far[:, :, 12 // side : 17 // side, 12 // side : 17 // side] = False
        torch.testing.assert_close(got[far], plain[far], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
