"""Plans of depthwise convolutions with 1x1 convolutions around them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from plan_results import is_close, operations
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.errors import BestofWarning, TorchError
from bestof.kernels.inverted_residual import has_rows_of_bfloat16
from bestof.torch.plan.layers.block import BY_LAYERS, BY_ROWS, BY_ROWS_BF16, PYTORCH
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps import block_step
from bestof.torch.plan.steps.block_step import BlockChoice, BlockStep

BLOCK = "inverted residual"
needs_pairs = pytest.mark.skipif(
    not has_rows_of_bfloat16(), reason="tile registers multiply layers one after the other"
)
X = torch.randn(2, 8, 33, 30, generator=torch.Generator().manual_seed(0))


def _layer(c: int, k: int, kernel: int = 1, stride: int = 1, *, act: bool = True) -> nn.Module:
    groups = c if kernel > 1 else 1
    convolution = nn.Conv2d(c, k, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(k), nn.ReLU6() if act else nn.Identity())


class Residual(nn.Module):
    """The inverted residual of MobileNetV2."""

    def __init__(self, c: int = 8, e: int = 48, k: int = 8, kernel: int = 3, stride: int = 1):
        super().__init__()
        torch.manual_seed(1)
        self.expand, self.filter = _layer(c, e), _layer(e, e, kernel, stride)
        self.project = _layer(e, k, act=False)
        self.adds = c == k and stride == 1
        for one in self.modules():
            if isinstance(one, nn.BatchNorm2d):
                for values, low, high in ((one.running_var, 0.5, 2), (one.running_mean, -1, 1)):
                    assert values is not None
                    values.uniform_(low, high)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.project(self.filter(self.expand(x)))
        return x + found if self.adds else found


class Gated(Residual):
    """Squeeze and excitation, behind the depthwise convolution."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.filter(self.expand(x))
        found: Tensor = self.project(y * torch.sigmoid(y.mean((2, 3), keepdim=True)))
        return found


class Separable(Residual):
    """A depthwise convolution and a 1x1 convolution, as in MobileNetV1."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = F.relu(self.project(self.filter(x.repeat(1, 6, 1, 1))))
        return found


class ReadTwice(Residual):
    """The expanded image is a result as well."""

    def forward(self, x: Tensor) -> Any:
        y = self.expand(x)
        return self.project(self.filter(y)), y


def program_of(plan: OptimizedModel, x: Tensor = X) -> Program:
    program, _ = plan.program(*pytree.tree_flatten(((x,), {})))
    return program


def choice_of(plan: OptimizedModel, x: Tensor = X) -> BlockChoice:
    (choice,) = (
        one for one in program_of(plan, x).choices.values() if isinstance(one, BlockChoice)
    )
    return choice


def settled(plan: OptimizedModel, name: str, x: Tensor = X) -> OptimizedModel:
    choice_of(plan, x).settle(name)
    program_of(plan, x).bind_anew()
    return plan


def kinds(plan: OptimizedModel, x: Tensor = X) -> list[str]:
    return [one for one in operations(plan, x) if not one.startswith("to channels")]


@pytest.fixture(scope="module")
def plan() -> OptimizedModel:
    return bt.optimize(Residual(), X)


class Met(NamedTuple):
    model: nn.Module
    layers: int


@pytest.mark.parametrize(
    "met",
    [
        Met(Residual(), 3),
        Met(Residual(k=24, stride=2), 3),
        Met(Residual(c=8, e=51, k=9, kernel=5), 3),
        Met(Gated(), 2),
        Met(Separable(), 2),
        Met(ReadTwice(), 2),
    ],
    ids=lambda met: type(met.model).__name__,
)
@torch.no_grad()
def test_every_alternative_computes_what_the_model_does(met: Met) -> None:
    plan = bt.optimize(met.model, X)
    assert kinds(plan).count(BLOCK) == 1
    assert len(choice_of(plan).layers) == met.layers
    expected = met.model(X)
    for name in (PYTORCH, BY_LAYERS, BY_ROWS):
        got = settled(plan, name)(X)
        for one, right in zip(pytree.tree_leaves(got), pytree.tree_leaves(expected), strict=True):
            assert (one - right).norm() <= 1e-5 * right.norm()


@needs_pairs
@torch.no_grad()
@pytest.mark.parametrize("model", [Residual(), Separable(), ReadTwice()], ids=type)
def test_relaxed_rows_multiply_bfloat16(model: nn.Module) -> None:
    """Two roundings of operands err by 3e-3 rms of the sums at most, where these are random."""
    plan = settled(bt.optimize(model, X, accuracy="relaxed"), BY_ROWS_BF16)
    got, right = (pytree.tree_leaves(one(X))[0] for one in (plan, model))
    assert 1e-4 <= (got - right).norm() / right.norm() <= 1e-2


@needs_pairs
@torch.no_grad()
def test_relaxed_rows_are_compared_with_rounded_operands() -> None:
    """Ones of 2^-9 more are rounded alike: each error of a sum has the same sign."""
    model = Residual(e=32, k=12)
    x = torch.full((1, 8, 40, 40), 1 + 2.0**-9)
    plan = settled(bt.optimize(model, x, accuracy="relaxed"), BY_ROWS_BF16, x)
    step = next(one for one in program_of(plan, x).borrow().chosen if isinstance(one, BlockStep))
    step._x.copy_(x)
    assert step.complaint() is None


@needs_pairs
def test_float32_plans_multiply_no_bfloat16(plan: OptimizedModel) -> None:
    assert not choice_of(plan).can_run(BY_ROWS_BF16)
    relaxed = bt.optimize(Residual(), X, accuracy="relaxed", tune=False)
    assert choice_of(relaxed).can_run(BY_ROWS_BF16)


def test_a_block_by_rows_is_close_to_float64(plan: OptimizedModel) -> None:
    assert is_close(settled(plan, BY_ROWS), Residual(), X)


@torch.no_grad()
def test_images_that_are_narrow_or_small_stay_layers() -> None:
    for x in (torch.randn(1, 8, 40, 13), torch.randn(1, 8, 14, 15)):
        assert BLOCK not in kinds(bt.optimize(Residual(), x, tune=False), x)


@torch.no_grad()
@pytest.mark.parametrize("name", [PYTORCH, BY_LAYERS, BY_ROWS, BY_ROWS_BF16])
def test_a_block_of_bfloat16_is_as_close_to_float32_as_the_model(name: str) -> None:
    half, x = Residual().bfloat16(), X.bfloat16()
    plan = bt.optimize(half, x)
    if not choice_of(plan, x).can_run(name):
        pytest.skip("tile registers multiply layers one after the other")
    right = deepcopy(half).float()(x.float())
    off = (settled(plan, name, x)(x).float() - right).norm()
    assert off <= 1.2 * (half(x).float() - right).norm()


@torch.no_grad()
@pytest.mark.parametrize("name", [BY_ROWS, pytest.param(BY_ROWS_BF16, marks=needs_pairs)])
def test_a_settled_block_of_bfloat16_is_compared(name: str) -> None:
    x = X.bfloat16()
    plan = settled(bt.optimize(Residual(k=16).bfloat16(), x), name, x)
    step = next(one for one in program_of(plan, x).borrow().chosen if isinstance(one, BlockStep))
    step._x.copy_(x)
    assert step.complaint() is None
    step.runner(name)()
    right = step.out.clone()
    step.out[:, 3] += 0.2
    wrong, _ = step.judged(name, None)
    assert wrong is not None
    step.out.copy_(right)
    assert step.judged(name, None)[0] is None


@torch.no_grad()
@pytest.mark.parametrize("name", [BY_ROWS, BY_LAYERS])
def test_a_plan_file_holds_the_decision(plan: OptimizedModel, name: str) -> None:
    layers = ": convgemm, depthwise, im2row" if name == BY_LAYERS else ""
    expected, file = settled(plan, name + layers)(X), io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded = bt.load(file)
    assert choice_of(loaded).recorded == name + layers
    assert torch.equal(loaded(X), expected)


def test_a_record_of_the_layers_is_checked(plan: OptimizedModel) -> None:
    choice = choice_of(plan)
    for right in (PYTORCH, BY_ROWS, BY_LAYERS, f"{BY_LAYERS}: convgemm, depthwise, pytorch"):
        assert choice.can_run(right)
    for wrong in (
        "by columns",
        f"{BY_LAYERS}: convgemm",
        f"{BY_LAYERS}: depthwise, depthwise, convgemm",
        f"{BY_LAYERS}: convgemm, depthwise, nothing",
    ):
        assert not choice.can_run(wrong)


@torch.no_grad()
@pytest.mark.parametrize("name", [BY_ROWS, BY_LAYERS])
def test_released_weights_are_not_asked_for_again(name: str) -> None:
    plan = settled(bt.optimize(Residual(), X), name)
    for _ in range(300):  # the choices of the layers
        plan(X)
        if name == BY_ROWS or all(one.algorithm for one in choice_of(plan).layers):
            break
    expected = plan(X)
    plan.release()
    assert torch.equal(plan(X), expected)
    with pytest.raises(TorchError):
        plan.save(io.BytesIO())


@torch.no_grad()
def test_a_limit_of_memory_holds_for_the_layers() -> None:
    model = Residual()
    plan = bt.optimize(model, X, memory=0)
    assert (plan(X) - model(X)).norm() <= 1e-5 * model(X).norm()


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Return a function that lets the kernel err by so much in one channel."""
    right = block_step.bind_by_rows

    def plant(error: float) -> None:
        def wrong(kernel: str, block: Any, x: Tensor, out: Tensor, added: Tensor | None) -> Any:
            bound = right(kernel, block, x, out, added)

            def run() -> None:
                bound.run()
                out[:, 3] += error

            return bound._replace(run=run)

        monkeypatch.setattr(block_step, "bind_by_rows", wrong)

    yield plant
    block_step.selector.cache_clear()


@torch.no_grad()
def test_the_first_result_of_the_kernel_is_compared(off: Callable[[float], None]) -> None:
    off(1e-3)
    x, model = torch.randn(1, 8, 35, 31), Residual(k=16)
    with pytest.warns(BestofWarning, match="by rows"):
        plan = bt.optimize(model, x)
    assert choice_of(plan, x).algorithm == BY_LAYERS
    assert (plan(x) - model(x)).norm() <= 1e-5 * model(x).norm()


@torch.no_grad()
def test_a_settled_kernel_that_is_wrong_is_replaced(off: Callable[[float], None]) -> None:
    plan = settled(bt.optimize(Residual(), X), BY_ROWS)
    step = next(one for one in program_of(plan).borrow().chosen if isinstance(one, BlockStep))
    for name, tensor in (("x", step._x), ("residual", step._residual)):
        assert tensor is not None, name
        tensor.copy_(X)
    assert step.complaint() is None
    off(1e-3)
    step._by_rows = {}
    wrong = step.complaint()
    assert wrong is not None
    with pytest.warns(BestofWarning, match="by rows"):
        step.give_up(wrong)
    assert step.algorithm == PYTORCH


@torch.no_grad()
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_right_results_pass_where_terms_cancel(scale: float) -> None:
    """Of an image that hardly varies, a filter that sums to zero leaves nothing but rounding."""
    model = Residual(e=32, k=12)
    with torch.no_grad():
        for layer in (model.expand, model.filter):
            layer[1] = layer[2] = nn.Identity().eval()  # type: ignore[index]
        weight: Tensor = model.filter[0].weight  # type: ignore[index]
        weight -= weight.mean((2, 3), keepdim=True)
    x = scale * (1 + 1e-6 * torch.randn(1, 8, 40, 40))
    plan = settled(bt.optimize(model, x), BY_ROWS, x)
    step = next(one for one in program_of(plan, x).borrow().chosen if isinstance(one, BlockStep))
    step._x.copy_(x)
    assert step.complaint() is None


@torch.no_grad()
def test_configurations_leave_the_kernel_out() -> None:
    bt.enable({"kernel": {"without": ["native by rows", "native by rows bf16"]}})
    try:
        plan = bt.optimize(Residual(k=20), X)
        assert choice_of(plan).algorithm == BY_LAYERS
    finally:
        bt.disable()


@torch.no_grad()
def test_an_explanation_names_the_block_and_its_modules() -> None:
    plan = settled(bt.optimize(nn.Sequential(nn.ReLU(), Residual()).eval(), X), BY_ROWS)
    (row,) = [one for one in plan.explain(X, repeats=1).steps if one.algorithm == BY_ROWS]
    assert row.modules == "1.expand.0, filter.0, project.0"
    assert row.problem.startswith("i8x33x30,k48x1x1")
    assert row.problem.endswith("relu6 > k48x3x3 relu6 > k8x1x1 residual")
    assert row.gflops > 0
