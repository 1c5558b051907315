"""Plans of transformers: what is fused, and that the results are the model's."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.errors import BestofWarning, TorchError
from bestof.kernels import AttentionPlan
from bestof.torch.plan.algorithms.table import algorithm, table
from bestof.torch.plan.binding import Binding
from bestof.torch.plan.container import read, write
from bestof.torch.plan.layer import Layer
from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.operations.linear import Linear
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.raced_problem import RacedProblem
from bestof.torch.plan.raced_step import RacedStep
from bestof.torch.plan.step import Step


def operations(plan: OptimizedModel, *inputs: Tensor) -> list[str]:
    """Return what a plan computes: operations by name, and PyTorch's operators."""
    leaves, spec = pytree.tree_flatten((inputs, {}))
    program, _ = plan.program(leaves, spec)
    found = []
    for node in program.nodes:
        operation = operation_of(node)
        if isinstance(operation, Linear):
            words = ["linear", operation.layer.activation, "residual" * (len(node.args) > 1)]
            found.append(" ".join(filter(None, words)))
        elif node.op == "call_function":
            found.append(str(node.target) if operation is None else operation.name)
    return found


def is_close(plan: Any, model: nn.Module, *inputs: Tensor) -> bool:
    """Compare with the model in float64, relative to the size of the results.

    Each of some ten steps errs by less than 16 units, on values of about one size.
    """
    with torch.no_grad():
        got = plan(*inputs)
        exact = copy.deepcopy(model).double()
        right = exact(*(x.double() if x.is_floating_point() else x for x in inputs))
    eps = float(torch.finfo(torch.float32).eps)
    error = torch.linalg.vector_norm(got - right)
    return bool(error <= 160 * eps * torch.linalg.vector_norm(right))


class Formula(nn.Module):
    """A product whose results pass through a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(24, 40), function

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.function(self.linear(x))
        return found


def spelled_gelu(x: Tensor) -> Tensor:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (F.gelu, "linear gelu"),
        (lambda x: F.gelu(x, approximate="tanh"), "linear gelu_tanh"),
        (spelled_gelu, "linear gelu_tanh"),
    ],
)
def test_gelu_is_part_of_the_product(function: Callable[[Tensor], Tensor], name: str) -> None:
    torch.manual_seed(0)
    model, x = Formula(function).eval(), 3 * torch.randn(2, 9, 24)
    plan = bt.optimize(model, x)
    assert operations(plan, x) == [name]
    assert is_close(plan, model, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 0.5 * x * (1 + torch.tanh(0.7 * (x + 0.044715 * torch.pow(x, 3.0)))),
        lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.04 * torch.pow(x, 3.0)))),
        lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 2.0)))),
        lambda x: 0.6 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0)))),
        lambda x: (
            0.5
            * x
            * torch.add(torch.tanh(0.7978845608 * (x + 0.044715 * x.pow(3.0))), 1.0, alpha=3)
        ),
        lambda x: (
            0.5 * x * (1 + torch.tanh(0.7978845608 * torch.add(x, 0.044715 * x.pow(3.0), alpha=2)))
        ),
    ],
)
def test_what_only_resembles_gelu_stays(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model, x = Formula(function).eval(), torch.randn(2, 9, 24)
    plan = bt.optimize(model, x)
    assert operations(plan, x)[0] == "linear"
    assert "aten.tanh.default" in operations(plan, x)
    assert is_close(plan, model, x)


class Transposed(nn.Module):
    """GPT-2's layer: the weight is (inputs, outputs), the rows are flattened around it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 40) / 5)
        self.bias = nn.Parameter(torch.randn(40))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return F.relu(rows.view(*x.shape[:-1], 40))


def test_a_transposed_weight() -> None:
    torch.manual_seed(0)
    model, x = Transposed().eval(), torch.randn(2, 9, 24)
    plan = bt.optimize(model, x)
    assert operations(plan, x) == ["linear relu"]
    assert is_close(plan, model, x)
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    torch.testing.assert_close(bt.load(file)(x), plan(x), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        model.weight.add_(1.0)
    with pytest.raises(TorchError, match="changed"):
        plan(x)


class Residual(nn.Module):
    """Two products in a row, with additions of a value of PyTorch's and of one in the arena."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        y = x.sin() + self.first(x)
        return self.second(y) + y


def test_additions_are_part_of_the_product() -> None:
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.randn(2, 9, 24)
    plan = bt.optimize(model, x)
    found = operations(plan, x)
    assert found.count("linear residual") == 2
    assert "aten.add.Tensor" not in found
    assert is_close(plan, model, x)


@pytest.mark.parametrize("rows", [1, 2, 5, 40])
def test_every_algorithm_adds_a_residual(rows: int) -> None:
    """The sum may overwrite the residual: each element is read just before it is written."""
    torch.manual_seed(rows)
    model, x = Residual().eval(), torch.randn(rows, 24)
    leaves, spec = pytree.tree_flatten(((x,), {}))
    plan = bt.optimize(model, x)
    program, _ = plan.program(leaves, spec)
    binding = program.borrow()
    step = next(s.convolution for s in binding.steps if s.convolution is not None)
    names = [name for name in table() if algorithm(name).can_run(step.problem)]
    program.give_back(binding)
    assert "pytorch" in names
    for name in names:
        if algorithm(name).rounds != "nothing":
            continue
        for choice in program.choices.values():
            choice.settle(name)
        program.bind_anew()
        assert is_close(plan, model, x), name


class Twice(nn.Module):
    """The residual is the input of the product, under another name: it must not be overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.second(y.reshape(18, 24)).reshape(2, 9, 24) + y


def test_an_input_is_not_overwritten_by_its_own_sum() -> None:
    torch.manual_seed(0)
    model, x = Twice().eval(), torch.randn(2, 9, 24)
    assert is_close(bt.optimize(model, x), model, x)


def chosen_by(plan: OptimizedModel, name: str, *inputs: Tensor) -> OptimizedModel:
    """Let PyTorch, or the native kernels, run all steps that both can run."""
    leaves, spec = pytree.tree_flatten((inputs, {}))
    program, _ = plan.program(leaves, spec)
    for choice in program.choices.values():
        if isinstance(choice.problem, RacedProblem):
            choice.settle(name)
    program.bind_anew()
    return plan


class Normed(nn.Module):
    """A norm of a product, and of a sum with it."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(24, 24), norm

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).reshape(2, 9, 24)
        found: Tensor = self.norm(x.sin() + y.reshape(18, 24).view(2, 9, 24))
        return found


class SpelledRms(nn.Module):
    """RMS norm as models of transformers spell it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(24) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32) if x.dtype is torch.float32 else x
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype)


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm(24),
        nn.LayerNorm(24, elementwise_affine=False),
        nn.LayerNorm(24, eps=1e-12, bias=False),
        nn.RMSNorm(24),
        SpelledRms(),
    ],
    ids=str,
)
def test_norms(norm: nn.Module) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for one in norm.parameters():
            one.add_(torch.rand_like(one))
    model, x = Normed(norm).eval(), torch.randn(2, 9, 24)
    plan = bt.optimize(model, x)
    assert operations(plan, x)[-1] == "row_norm"
    for name in ("native", "pytorch"):
        assert is_close(chosen_by(plan, name, x), model, x), name


def test_a_norm_of_several_axes_stays() -> None:
    model, x = Normed(nn.LayerNorm((9, 24))).eval(), torch.randn(2, 9, 24)
    assert "row_norm" not in operations(bt.optimize(model, x), x)


class Attended(nn.Module):
    """Attention of 4 heads, whose keys and values have fewer heads and are repeated."""

    def __init__(self, shared: int, mask: str) -> None:
        super().__init__()
        self.shared, self.mask = shared, mask
        self.q, self.k, self.v = (nn.Linear(24, 6 * n) for n in (4, shared, shared))
        self.out = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            one(x).view(batch, tokens, -1, 6).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        if self.shared < 4:
            shape = batch, self.shared, 4 // self.shared, tokens, 6
            k, v = (one[:, :, None].expand(shape).reshape(batch, 4, tokens, 6) for one in (k, v))
        mask: Tensor | None = None
        if self.mask == "bool":
            mask = torch.arange(tokens)[:, None] >= torch.arange(tokens)[None]
        if self.mask == "float":
            mask = x[:, None, :, :1].expand(batch, 4, tokens, tokens).to(x.dtype)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.mask == "causal")
        found: Tensor = self.out(y.transpose(1, 2).reshape(batch, tokens, 24))
        return found


@pytest.mark.parametrize("mask", ["", "causal", "bool", "float"])
@pytest.mark.parametrize("shared", [4, 2, 1])
def test_attention(shared: int, mask: str) -> None:
    torch.manual_seed(shared)
    model, x = Attended(shared, mask).eval(), torch.randn(2, 9, 24)
    plan = bt.optimize(model, x)
    found = operations(plan, x)
    assert found.count("attention") == 1
    assert "aten.scaled_dot_product_attention.default" not in found
    assert found[-1] == "linear"
    assert found[-2] == "aten.reshape.default"
    for name in ("native", "pytorch"):
        assert is_close(chosen_by(plan, name, x), model, x), name
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    assert is_close(bt.load(file), model, x)


def test_a_wrong_kernel_gives_way_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever wins the race, the native result is compared before a plan may use it."""
    torch.manual_seed(0)
    model, x = Attended(4, "").eval(), torch.randn(2, 9, 24)
    monkeypatch.setattr(AttentionPlan, "run", lambda *_: None)
    monkeypatch.setattr(RacedStep, "algorithm", property(_native_unless_ordered))
    with pytest.warns(BestofWarning, match="the native kernel is off by"):
        plan = bt.optimize(model, x)
    assert is_close(plan, model, x)


def _native_unless_ordered(step: RacedStep) -> str | None:
    return step.choice.algorithm if step.choice.is_ordered else "native"


@pytest.mark.parametrize("part", ["scale", "eps", "shape"])
def test_a_changed_file_is_refused(part: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 24), nn.LayerNorm(24), Attended(4, "")).eval()
    file = io.BytesIO()
    bt.optimize(model, torch.randn(2, 9, 24)).save(file)
    content, tensors = read(io.BytesIO(file.getvalue()))
    nodes = {
        one["operation"]["name"]: one
        for one in content["programs"][0]["nodes"]
        if "operation" in one
    }
    if part == "scale":
        nodes["attention"]["operation"]["scale"] = "1"
    elif part == "eps":
        nodes["row_norm"]["operation"]["eps"] = -1.0
    else:
        nodes["attention"]["val"]["tensor"][0] = [2, 9, 4, 7]
    changed = io.BytesIO()
    write(changed, content, tensors)
    changed.seek(0)
    with pytest.raises(TorchError, match="cannot be read here"):
        bt.load(changed)


class Untransposed(nn.Module):
    """Attention that stays PyTorch's, which marks it as random, beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return F.scaled_dot_product_attention(y, y, y)


def test_plans_with_attention_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention without dropout draws no random numbers."""
    model, x = Untransposed().eval(), torch.randn(2, 4, 9, 6)
    assert "aten.scaled_dot_product_attention.default" in operations(bt.optimize(model, x), x)
    wrong = Layer.product
    monkeypatch.setattr(Layer, "product", lambda *given: 2 * wrong(*given))
    with pytest.warns(BestofWarning, match="PyTorch's own kernel takes its place"):
        bt.optimize(model, x)


class Split(nn.Module):
    """One product for q, k and v, whose results are views of one value."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(24, 72), nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.view(2, 9, 4, 6).transpose(1, 2) for one in self.all(x).split(24, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.out(y.transpose(1, 2).reshape(2, 9, 24))
        return found


def test_split_values_are_read_where_they_lie() -> None:
    """The views lie in the arena, which no copy leaves."""
    torch.manual_seed(0)
    model, x = Split().eval(), torch.randn(2, 9, 24)
    plan = chosen_by(bt.optimize(model, x), "native", x)
    assert is_close(plan, model, x)
    leaves, spec = pytree.tree_flatten(((x,), {}))
    program, _ = plan.program(leaves, spec)
    places: list[bool] = []

    def look(binding: Binding, step: Step) -> None:
        value = binding.slots[step.slot]
        if step.kind == "aten.split.Tensor":
            places.extend(binding.arena.holds(one) for one in value)

    program.run([x], after_step=look)
    assert places == [True] * 3


class Returned(nn.Module):
    """Views of the arena are outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.linear(x).split(8, dim=1))


def test_split_outputs_are_the_callers() -> None:
    torch.manual_seed(0)
    model, x = Returned().eval(), torch.randn(2, 24)
    plan = bt.optimize(model, x)
    first = plan(x)
    kept = [one.clone() for one in first]
    plan(x + 1.0)
    assert all(map(torch.equal, first, kept))


class Chunks(nn.Module):
    """A part of a value changes in place, and the value with it."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2.0
        y.split(4, dim=1)[0].add_(1.0)
        return y


def test_a_change_through_a_part_is_seen() -> None:
    x = torch.randn(2, 8)
    torch.testing.assert_close(bt.optimize(Chunks().eval(), x)(x), Chunks()(x))
