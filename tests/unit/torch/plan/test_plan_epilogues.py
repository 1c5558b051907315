"""Plans of products with an activation or an addition at the end."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plan_results import is_close, operations
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.plan.algorithms.table import algorithm, table


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


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x * torch.sigmoid(x), "linear silu"),
        (lambda x: torch.sigmoid(x) * x, "linear silu"),
        (lambda x: x * F.relu6(x + 3) / 6, "linear hard_swish"),
        (lambda x: x * (F.relu6(x + 3.0) / 6.0), "linear hard_swish"),
        (lambda x: x * F.hardtanh(x + 3.0, 0.0, 6.0) * (1 / 6), "linear hard_swish"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_spelled_swish_is_part_of_the_product(
    function: Callable[[Tensor], Tensor], name: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model, x = Formula(function).eval().to(dtype), 3 * torch.randn(2, 9, 24).to(dtype)
    plan = bt.optimize(model, x)
    assert operations(plan, x) == [name]
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(plan(x), model(x), rtol=4 * eps, atol=8 * eps)


def test_a_spelled_hard_sigmoid_is_one_operator() -> None:
    torch.manual_seed(0)
    model, x = Formula(lambda x: F.relu6(x + 3) / 6).eval(), 3 * torch.randn(2, 9, 24)
    plan = bt.optimize(model, x)
    assert operations(plan, x)[1:] == ["aten.hardsigmoid.default"]
    assert is_close(plan, model, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.sigmoid(x + 1),
        lambda x: (x + 1) * torch.sigmoid(x),
        lambda x: x * F.relu6(x + 2) / 6,
        lambda x: x * F.relu6(x + 3) / 5,
        lambda x: x * F.relu6(torch.add(x, 3, alpha=2)) / 6,
        lambda x: x * F.hardtanh(x + 3.0, 0.0, 5.0) / 6,
        lambda x: (6 - x) * F.relu6(x + 3) / 6,
        lambda x: x * torch.div(F.relu6(x + 3), 6, rounding_mode="floor"),
        lambda x: (s := torch.sigmoid(x)) * x + s,
        lambda x: (r := F.relu6(x + 3)) * x / 6 + r,
    ],
)
def test_what_only_resembles_a_swish_stays(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model, x = Formula(function).eval(), 3 * torch.randn(2, 9, 24)
    plan = bt.optimize(model, x)
    assert not any("swish" in one or "silu" in one for one in operations(plan, x))
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


class Spelled(nn.Module):
    """A linear layer by a matrix product, as Falcon and many papers write it."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight, self.square = (nn.Parameter(torch.randn(40, n) / 5) for n in (24, 40))
        self.bias, self.column = nn.Parameter(torch.randn(40)), nn.Parameter(torch.randn(40, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda m, x: F.relu(x @ m.weight.T + m.bias), ["linear relu"]),
        (lambda m, x: F.relu(m.bias + x @ m.weight.t()), ["linear relu"]),
        (lambda m, x: F.relu(x.matmul(m.weight.mT)), ["linear relu"]),
        (lambda m, x: x @ m.weight.transpose(0, 1), ["linear"]),
        (lambda m, x: x @ m.weight.permute(-1, 0), ["linear"]),
        (lambda m, x: torch.mm(x[0], m.weight.T) + m.bias, ["linear"]),
        (lambda m, x: (x @ m.weight.T).sin() @ m.square, ["linear", "linear"]),
        (lambda m, x: x @ m.weight.T + m.bias[None], ["linear"]),
        (lambda m, x: torch.add(x @ m.weight.T, m.bias, alpha=2), ["linear"]),
        (lambda m, x: x @ m.weight.T + m.bias[0], ["linear"]),
        (lambda m, x: x @ m.weight.T + 2.0, ["linear"]),
        (lambda m, x: (y := x @ m.weight.T) + m.bias - y.sin(), ["linear"]),
        (lambda m, x: x[0, 0] @ m.weight.T, []),
        (lambda m, x: m.square @ m.weight + x.sum(), ["linear"]),
        (lambda m, x: x @ m.weight.sin().T, []),
        (lambda m, x: x.transpose(1, 2) @ m.bias[:9] * x.sum(), []),
    ],
)
def test_a_layer_by_a_matrix_product(
    function: Callable[[Any, Tensor], Tensor], expected: list[str]
) -> None:
    torch.manual_seed(0)
    model, x = Spelled(function).eval(), torch.randn(2, 9, 24)
    plan = bt.optimize(model, x)
    assert [one for one in operations(plan, x) if one.startswith("linear")] == expected
    assert is_close(plan, model, x)
    half, rounded = copy.deepcopy(model).bfloat16(), x.bfloat16()
    with torch.no_grad():
        right = copy.deepcopy(half).double()(rounded.double())
    error = torch.linalg.vector_norm(bt.optimize(half, rounded)(rounded).double() - right)
    assert error <= 10 * 2**-8 * torch.linalg.vector_norm(right)


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
