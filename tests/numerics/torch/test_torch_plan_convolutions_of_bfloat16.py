"""Convolutions of bfloat16 in plans: each layer and whole models against float64."""

from __future__ import annotations

import copy
import io
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bestof.torch as bt
from bestof import kernels
from bestof.errors import BestofWarning
from bestof.torch.plan.algorithms.table import applicable
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.convolution_step import ConvolutionStep
from bestof.torch.plan.verify.verification import verify

UNIT = 2.0**-8  # the largest relative error of rounding to 8 bits
EPSILON = float(torch.finfo(torch.float32).eps) / 2

LAYERS = {
    "3x3": nn.Conv2d(20, 24, 3, padding=1),
    "3x3 by 2": nn.Conv2d(32, 17, 3, stride=2, bias=False),
    "1x1": nn.Conv2d(48, 70, 1),
    "patches": nn.Conv2d(3, 40, 4, stride=4),
    "downsampling": nn.Conv2d(24, 48, 2, stride=2),
    "groups": nn.Conv2d(32, 48, 3, padding=1, groups=4),
    "depthwise 7x7": nn.Conv2d(40, 40, 7, padding=3, groups=40),
    "depthwise 3x3 by 2": nn.Conv2d(19, 19, 3, stride=2, padding=1, groups=19),
}
WANTED = {"1x1": "blocked_bf16", "depthwise 7x7": "depthwise", "depthwise 3x3 by 2": "depthwise"}
TILES = ["winograd2", "winograd4", "winograd6"]


class Layer(nn.Module):
    """A convolution, and an evaluated norm and an activation after it."""

    def __init__(self, convolution: nn.Conv2d, normed: bool, activated: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = copy.deepcopy(convolution)
        self.norm = nn.BatchNorm2d(convolution.out_channels) if normed else None
        self.activated = activated
        for value in (*self.parameters(), *self.buffers()):
            if value.is_floating_point():
                value.data.copy_(0.5 + torch.rand_like(value))
        self.convolution.weight.data.normal_().div_(math.sqrt(self.convolution.weight[0].numel()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        y = y if self.norm is None else self.norm(y)
        return F.gelu(y) if self.activated else y


def program_of(plan: OptimizedModel) -> Program:
    return next(reversed(plan._programs.values()))[2]


def settled(layer: nn.Module, x: Tensor, name: str) -> OptimizedModel:
    """Return a plan whose layer runs by one algorithm."""
    plan = bt.optimize(layer, x, tune=False)
    program = program_of(plan)
    program.settle({str(node.meta["name"]): name for node in program.choices})
    program.bind_anew()
    return plan


def chosen(plan: OptimizedModel) -> list[str]:
    """Return the algorithms of the layers of a plan."""
    return [one.algorithm for one in plan.explain(repeats=1).steps if one.algorithm]


def raced(layer: nn.Module, x: Tensor) -> list[str]:
    """Return the algorithms that are raced for the convolution of a model."""
    program = program_of(bt.optimize(layer, x, tune=False))
    binding = program.borrow()
    try:
        (step,) = [one.convolution for one in binding.steps if one.convolution is not None]
        return applicable(step.problem)
    finally:
        program.give_back(binding)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).bfloat16()


@pytest.mark.long(every=3)
@torch.no_grad()
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("normed", [False, True], ids=["", "norm"])
@pytest.mark.parametrize("activated", [False, True], ids=["", "gelu"])
def test_every_result_is_within_its_roundings(name: str, normed: bool, activated: bool) -> None:
    """One rounding of the result, and one of each weight if a norm scales it."""
    layer = Layer(LAYERS[name], normed, activated).eval().bfloat16()
    exact = copy.deepcopy(layer).double()
    x = drawn(2, layer.convolution.in_channels, 13, 16)
    algorithms = raced(layer, x)
    assert WANTED.get(name, "convgemm_bf16") in algorithms
    assert [one for one in algorithms if one in TILES] == (TILES if name == "3x3" else [])
    bare = copy.deepcopy(exact.convolution)
    bare.weight.abs_()
    bare.bias = None
    magnitude = bare(x.double().abs())
    bare.weight.copy_(exact.convolution.weight)
    size = bare(x.double())
    if exact.norm is not None:
        variance = exact.norm.running_var
        assert variance is not None
        scale = exact.norm.weight / (variance + exact.norm.eps).sqrt()
        magnitude *= scale.abs()[:, None, None]
        size *= scale[:, None, None]
    sums = EPSILON * (exact.convolution.weight[0].numel() + 16)
    error = 1.2 * magnitude * (sums + (UNIT if normed else 0.0))  # slopes up to 1.2
    wanted = exact(x.double())
    for algorithm in algorithms:
        if algorithm in kernels.algorithms() or algorithm in kernels.matmul_algorithms(
            (1, 1), (1, 1)
        ):
            off = (settled(layer, x, algorithm)(x).double() - wanted).abs()
            offset = 1e-5 * (1 + wanted.abs())  # of the bias in float32, and of the activation
            if algorithm in TILES:
                offset += 1.2 * kernels.algorithms()[algorithm].error.maximum * size.std()
            assert (off <= (1 + UNIT) * (error + offset) + UNIT * wanted.abs()).all(), algorithm


@torch.no_grad()
@pytest.mark.parametrize("name", ["3x3", "1x1", "depthwise 7x7"])
def test_the_residual_is_added_before_the_rounding(name: str) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = copy.deepcopy(LAYERS[name]), copy.deepcopy(LAYERS[name])

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.first(x) + self.last(x))

    model = Residual().eval().bfloat16()
    x = drawn(1, model.first.in_channels, 9, 10)
    exact = copy.deepcopy(model).double()
    first, last = exact.first(x.double()), exact.last(x.double())
    wanted = F.relu(first + last)
    algorithm = WANTED.get(name, "convgemm_bf16")
    plan = settled(model, x, algorithm)
    words = [step.problem for step in plan.explain().steps]
    assert any("bfloat16" in one and "residual" in one and "relu" in one for one in words)
    bound = UNIT * (1 + UNIT) * (torch.maximum(first.abs(), last.abs()) + wanted) + 1e-4
    assert ((plan(x).double() - wanted).abs() <= bound).all()


class Network(nn.Module):
    """Everything that convolutions of a network meet: norms, poolings, residuals, concatenation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16))
        self.deep = nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.wide = nn.Conv2d(16, 24, 1)
        self.norm = nn.BatchNorm2d(40)
        self.down = nn.Conv2d(40, 32, 2, stride=2)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        x = x + self.deep(x)
        x = self.norm(torch.cat([x, F.gelu(self.wide(x))], 1))
        x = F.avg_pool2d(self.down(torch.sigmoid(x)), 2)
        found: Tensor = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return found


def convnext() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    options = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "num_labels": 10}

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.ConvNextForImageClassification(
                transformers.ConvNextConfig(**options)
            )
            for name, value in self.model.named_parameters():
                if "layer_scale" in name:
                    nn.init.uniform_(value, 0.2, 1.0)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.model(x).logits
            return found

    return Logits()


def of_pytorchcv(name: str) -> nn.Module:
    pytest.importorskip("pytorchcv")
    models = pytest.importorskip("bestof.bench.model.pytorchcv")
    torch.manual_seed(0)
    model: nn.Module = getattr(models, name)((64, 64), True)
    for one in model.modules():
        if isinstance(one, nn.BatchNorm2d):
            assert one.running_mean is not None
            assert one.running_var is not None
            nn.init.normal_(one.running_mean, 0, 0.1)
            nn.init.uniform_(one.running_var, 0.5, 1.5)
    return model


MODELS = {
    "network": (Network, 32),
    "convnext": (convnext, 64),
    "resnet18": (lambda: of_pytorchcv("resnet18"), 64),
    "mobilenetv2": (lambda: of_pytorchcv("mobilenet_v2"), 64),
}


@torch.no_grad()
@pytest.mark.parametrize(
    "name",
    [
        "network",
        "convnext",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("resnet18", "mobilenetv2")),
    ],
)
def test_a_model_is_as_close_to_float64_as_eager(name: str) -> None:
    make, extent = MODELS[name]
    model = make().eval().bfloat16()
    exact = copy.deepcopy(model).double()
    x = drawn(4, 3, extent, extent)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BestofWarning)  # of a layer that verification replaces
        plan = bt.optimize(model, x)
    wanted = exact(x.double())
    theirs, ours = ((one(x).double() - wanted).norm() for one in (model, plan))
    # Both errors are sums of many roundings: their norms scatter.
    assert ours <= 1.5 * theirs
    steps = plan.explain().steps
    assert sum("bfloat16" in step.problem for step in steps) >= 4
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    assert torch.equal(bt.load(file)(x), plan(x))


@torch.no_grad()
@pytest.mark.parametrize("algorithm", TILES)
@pytest.mark.parametrize("fault", [math.nan, math.inf, -1e30])
def test_a_pixel_that_stands_out_reaches_the_results_that_read_it(
    algorithm: str, fault: float
) -> None:
    layer, x = copy.deepcopy(LAYERS["3x3"]).eval().bfloat16(), drawn(2, 20, 13, 14)
    plan = settled(layer, x, algorithm)
    assert chosen(plan) == [algorithm]
    faulty = x.clone()
    faulty[1, 3, 6, 7] = fault
    reads = torch.zeros(2, 1, 13, 14, dtype=torch.bool)
    reads[1, :, 5:8, 6:9] = True
    got, right = plan(faulty), layer(faulty)
    torch.testing.assert_close(got, right, rtol=2 * UNIT, atol=1e-2, equal_nan=True)
    usual = layer(x)
    others = ~reads.expand_as(got)
    torch.testing.assert_close(got[others], usual[others], rtol=2 * UNIT, atol=1e-2)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("3x3", "convgemm_bf16"), ("3x3", "winograd4"), ("depthwise 7x7", "depthwise")],
)
def test_a_wrong_kernel_is_replaced(
    name: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = copy.deepcopy(LAYERS[name]).eval().bfloat16()
    x = drawn(2, layer.in_channels, 8, 9)
    right = ConvolutionStep.runner

    def wrong(step: ConvolutionStep, chosen: str) -> Any:
        run = right(step, chosen)

        def off() -> None:
            run()
            step.placed.out[1, 3] += 0.1  # one channel of an image

        return off if chosen == algorithm else run

    plan = settled(layer, x, algorithm)  # before the fault: an open choice may try any algorithm
    monkeypatch.setattr(ConvolutionStep, "runner", wrong)
    program_of(plan).bind_anew()
    with pytest.warns(BestofWarning, match=f"{algorithm} is off by"):
        verify(program_of(plan), [x], [layer(x)], [x])
    assert set(program_of(plan).decisions().values()) == {"pytorch"}


@torch.no_grad()
def test_no_layer_is_left_to_pytorch_because_of_its_type() -> None:
    """All steps of a network are of the plan, but for the flattening of what is pooled."""
    model, x = Network().eval().bfloat16(), drawn(1, 3, 32, 32)
    problems = [step.problem for step in bt.optimize(model, x, tune=False).explain().steps]
    assert sum(" d1 g" in one or ",d1,g" in one for one in problems) == 5
    assert sum("channels norm" in one for one in problems) == 1
    assert sum("pooling" in one for one in problems) == 3


@torch.no_grad()
def test_types_that_are_mixed_stay_apart() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8).bfloat16()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.first(x)
            return y[:, :, 2:, 2:] + self.last(y.bfloat16()) + self.last(y.bfloat16()).float()

    model, x = Mixed().eval(), torch.randn(2, 3, 9, 9)
    right = model(x)
    off = (bt.optimize(model, x)(x) - right).norm()
    assert off <= 2 * UNIT * right.norm()
