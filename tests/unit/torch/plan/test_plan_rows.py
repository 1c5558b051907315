"""Operators that rows of `torch.ops` compute in plans, as in eager calls."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bestof
import bestof.torch as bt
from bestof.errors import BestofWarning
from bestof.torch.ops import table
from bestof.torch.plan.operations.by_row import ByRow
from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.rows.row_selector import row_selector

EPS = float(torch.finfo(torch.float32).eps)


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.rand(8, 4, 3, 3, 3) - 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) if x.dim() < 5 else F.conv3d(x, self.weight, padding=1)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def algorithms(plan: OptimizedModel, x: Tensor) -> dict[str, str | None]:
    return {one.problem: one.algorithm for one in plan.explain(x, repeats=1).steps}


FUNCTIONS = {
    "softmax 512x1024 axis=1 threads": lambda x: torch.softmax(x, -1),
    "softmax 512x1024 axis=0 threads": lambda x: F.softmax(x, 0),
    "gelu 512x1024 gelu threads": lambda x: F.gelu(x - 1),
    "gelu 512x1024 gelu_tanh threads": lambda x: F.gelu(x - 1, approximate="tanh"),
    "silu 512x1024 silu threads": lambda x: F.silu(x * 2),
    "layer norm 4x128x1024 axes=2 threads": lambda x: F.layer_norm(
        x.view(4, 128, 1024), (128, 1024)
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("policy", ["as is", "native"])
def test_the_row_that_is_chosen_computes_the_step(name: str, policy: str) -> None:
    bestof.use_policy(f"fixed:{policy}")
    model, x = Function(FUNCTIONS[name]).eval(), numbers(512, 1024)
    plan = bt.optimize(model, (x,))
    assert algorithms(plan, x)[name.removesuffix(" threads")] == policy
    for given in (x, x.t().contiguous().t(), -3 * x):
        right = model(given.double())
        # Sums of 2^17 numbers in pairs of vectors, and some roundings, of numbers up to 15.
        error = torch.linalg.vector_norm(plan(given) - right)
        assert error <= 64 * EPS * torch.linalg.vector_norm(right)
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded = bt.load(file)
    assert algorithms(loaded, x)[name.removesuffix(" threads")] == policy
    assert torch.equal(loaded(x), plan(x))


def test_volumes_are_convolved_by_planes() -> None:
    model, x = Function(torch.neg).eval(), numbers(1, 4, 6, 24, 24)
    plan = bt.optimize(model, (x,))
    (chosen,) = (row for step, row in algorithms(plan, x).items() if "convolution 3d" in step)
    assert chosen is not None
    right = copy.deepcopy(model).double()(x.double())
    error = torch.linalg.vector_norm(plan(x) - right)
    # No row promises more than 2.5e-6 of the rms of its sums.
    assert error <= 2.5e-6 * torch.linalg.vector_norm(right)


class Attend(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q.transpose(1, 2) @ k.transpose(1, 2).transpose(2, 3) + 1


@pytest.mark.parametrize("policy", ["as is", "native blocked"])
def test_batches_of_products_are_chosen_as_in_eager_calls(policy: str) -> None:
    bestof.use_policy(f"fixed:{policy}")
    q, k = numbers(2, 2, 128, 6, 64)
    plan = bt.optimize(Attend().eval(), (q, k))
    steps = {one.problem: one.algorithm for one in plan.explain(q, k, repeats=1).steps}
    text = "product bmm b12,m128,k64,n128"
    assert steps[text] == policy
    right = Attend()(q.double(), k.double())
    error = torch.linalg.vector_norm(plan(q, k) - right)
    assert error <= 8 * EPS * torch.linalg.vector_norm(right)
    product = next(one for one in table.OPERATIONS if one.name == "product")
    before = row_selector(product).selector.trials
    with bt.enabled(), torch.no_grad():
        found = Attend()(q, k)
    assert torch.linalg.vector_norm(found - right) <= 8 * EPS * torch.linalg.vector_norm(right)
    assert row_selector(product).selector.trials == before
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    assert torch.equal(bt.load(file)(q, k), plan(q, k))


def test_small_values_and_those_in_channels_last_are_left_alone() -> None:
    plan = bt.optimize(Function(lambda x: torch.softmax(x, -1)).eval(), (numbers(8, 8),))
    assert not _by_row(plan)
    model = nn.Sequential(nn.Conv2d(4, 32, 3), nn.BatchNorm2d(32), nn.Softmax(1)).eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        x = numbers(4, 4, 66, 66)
        plan = bt.optimize(model, (x,))
        assert torch.allclose(plan(x), model(x), atol=64 * EPS)


def _by_row(plan: OptimizedModel) -> list[str]:
    program = next(iter(plan._programs.values())).program
    found = map(operation_of, program.nodes)
    return [one.operation for one in found if isinstance(one, ByRow)]


def test_a_plan_takes_what_eager_calls_have_learnt() -> None:
    x = numbers(512, 1024)
    bestof.use_policy("fixed:native")
    with bt.enabled():
        torch.softmax(x, -1)
    softmax = next(one for one in table.OPERATIONS if one.name == "softmax")
    before = row_selector(softmax).selector.trials
    plan = bt.optimize(Function(lambda x: torch.softmax(x, -1)).eval(), (x,))
    assert algorithms(plan, x)["softmax 512x1024 axis=1"] == "native"
    assert row_selector(softmax).selector.trials == before


class Heads(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        turned = [one.transpose(1, 2) for one in (q, k, v)]
        return F.scaled_dot_product_attention(*turned).transpose(1, 2)


def test_attention_takes_what_eager_calls_have_chosen() -> None:
    heads, (q, k, v) = Heads().eval(), numbers(3, 2, 256, 6, 32)
    bestof.use_policy("fixed:native")
    with bt.enabled(), torch.no_grad():
        heads(q, k, v)
    bestof.use_policy("fixed:pytorch")
    plan = bt.optimize(heads, (q, k, v))
    (algorithm,) = (one.algorithm for one in plan.explain(q, k, v).steps if one.algorithm)
    assert algorithm == "native"


def test_operands_in_the_arena_are_told_from_results() -> None:
    bestof.use_policy("fixed:native")
    x = numbers(512, 1024)
    model = nn.Sequential(nn.Softmax(-1), nn.SiLU(), nn.GELU()).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = bt.optimize(model, (x,))
    assert set(algorithms(plan, x).values()) == {"native"}
    error = torch.linalg.vector_norm(plan(x) - model(x.double()))
    assert error <= 64 * EPS * torch.linalg.vector_norm(model(x.double()))


def test_a_kernel_that_writes_nothing_gives_way() -> None:
    bestof.use_policy("fixed:native")
    softmax = next(one for one in table.OPERATIONS if one.name == "softmax")
    rows = row_selector(softmax).rows

    class Idle:
        def write(self, operands: list[int], results: list[int]) -> bool:
            return len(operands) == len(results) == 1

    rows["native"] = replace(rows["native"], compiled=lambda *_: Idle())
    x = numbers(512, 1024)
    with pytest.warns(BestofWarning, match="PyTorch's own kernel takes its place"):
        plan = bt.optimize(Function(lambda x: torch.softmax(x, -1)).eval(), (x,))
    assert algorithms(plan, x)["softmax 512x1024 axis=1"] == "as is"
    assert torch.equal(plan(x), torch.softmax(x, -1))


def test_a_kernel_that_refuses_is_replaced_by_the_function() -> None:
    bestof.use_policy("fixed:native")
    softmax = next(one for one in table.OPERATIONS if one.name == "softmax")
    rows = row_selector(softmax).rows

    class Refusing:
        def write(self, operands: list[int], results: list[int]) -> bool:
            return not (operands and results)

    rows["native"] = replace(rows["native"], compiled=lambda *_: Refusing())
    x = numbers(512, 1024)
    plan = bt.optimize(Function(lambda x: torch.softmax(x, -1)).eval(), (x,))
    assert algorithms(plan, x)["softmax 512x1024 axis=1"] == "native"
    assert torch.allclose(plan(x), torch.softmax(x, -1), rtol=64 * EPS, atol=0)


def test_an_ordered_row_that_is_thought_slow_is_loaded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bestof.use_policy("fixed:native")
    softmax = next(one for one in table.OPERATIONS if one.name == "softmax")
    first, *others = softmax.rows
    slow = [replace(one, promising=lambda _: False) for one in others]
    monkeypatch.setattr(softmax, "rows", (first, *slow), raising=False)
    x = numbers(512, 1024)
    plan = bt.optimize(Function(lambda x: torch.softmax(x, -1)).eval(), (x,))
    assert algorithms(plan, x)["softmax 512x1024 axis=1"] == "native"
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    assert torch.equal(bt.load(file)(x), plan(x))


def test_a_row_without_memory_gives_way_to_pytorch_for_the_call() -> None:
    bestof.use_policy("fixed:native")
    softmax = next(one for one in table.OPERATIONS if one.name == "softmax")
    rows = row_selector(softmax).rows
    x = numbers(512, 1024)
    plan = bt.optimize(Function(lambda x: torch.softmax(x, -1)).eval(), (x,))
    right = plan(x)

    def short(*_: object) -> None:
        raise MemoryError

    rows["native"] = replace(rows["native"], compiled=None, function=short)
    loaded = io.BytesIO()
    plan.save(loaded)
    loaded.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BestofWarning)  # of a check that finds no result
        again = bt.load(loaded)
        assert torch.allclose(again(x), right, rtol=64 * EPS, atol=0)
