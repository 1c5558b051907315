"""Linear layers that read the same value: one product, whose parts are views."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plan_regimes import settle_natively
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.plan import optimized as optimizing
from bestof.torch.plan.algorithms.table import algorithm, table
from bestof.torch.plan.file.container import read, write
from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.operations.linear import Linear
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run.program import Program

X = torch.linspace(-2, 2, 2 * 9 * 24).sin().reshape(2, 9, 24)


class Attended(nn.Module):
    """Attention of 4 heads of 6; the keys and values have fewer heads."""

    def __init__(self, shared: int = 2, biases: tuple[bool, bool, bool] = (True,) * 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (
            nn.Linear(24, 6 * heads, bias)
            for heads, bias in zip((4, shared, shared), biases, strict=True)
        )
        self.out = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            one(x).view(batch, tokens, -1, 6).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        found: Tensor = self.out(y.transpose(1, 2).reshape(batch, tokens, 24))
        return found


class Branches(nn.Module):
    """Two layers of 24 features, and a function of them and the input."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.last = (nn.Linear(24, 24) for _ in range(3))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def program_of(plan: OptimizedModel, x: Tensor) -> Program:
    return plan.program(*pytree.tree_flatten(((x,), {})))[0]


def widths(plan: OptimizedModel, x: Tensor) -> list[int]:
    """Return the outputs of each product."""
    found = map(operation_of, program_of(plan, x).nodes)
    return [len(one.layer.weights.weight) for one in found if isinstance(one, Linear)]


def assert_close(got: Any, model: nn.Module, x: Tensor) -> None:
    """Compare with float64: some ten steps, each within 16 units of values of about one size."""
    with torch.no_grad():
        right = pytree.tree_leaves(copy.deepcopy(model).double()(x.double()))
    for one, other in zip(pytree.tree_leaves(got), right, strict=True):
        bound = 160 * torch.finfo(torch.float32).eps * torch.linalg.vector_norm(other)
        assert torch.linalg.vector_norm(one - other) <= bound


@pytest.mark.parametrize("biases", [(True,) * 3, (False,) * 3, (True, False, True)], ids=str)
@pytest.mark.parametrize("shared", [4, 2, 1])
def test_query_key_and_value_are_one_product(shared: int, biases: Any) -> None:
    model = Attended(shared, biases).eval()
    plan = bt.optimize(model, X)
    assert widths(plan, X) == [24 + 12 * shared, 24]
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded = bt.load(file)
    assert widths(loaded, X) == [24 + 12 * shared, 24]
    for given in (X, -X, X.transpose(0, 1).contiguous().transpose(0, 1)):
        assert_close(plan(given), model, given)
    assert_close(loaded(X), model, X)


def test_every_algorithm_computes_a_joined_product() -> None:
    model = Attended(2, (True, False, True)).eval()
    plan = bt.optimize(model, X)
    program = program_of(plan, X)
    choice = next(iter(program.choices.values()))
    problem: Any = choice.problem
    names = [name for name in table() if algorithm(name).can_run(problem)]
    assert "pytorch" in names
    for name in names:
        if algorithm(name).rounds == "nothing":
            choice.settle(name)
            program.bind_anew()
            assert_close(plan(X), model, X)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda net, x: net.first(x).tanh() * net.second(x), [48]),
        (lambda net, x: (net.first(x), net.second(x)), [48]),
        (lambda net, x: (net.first(x).transpose(1, 2), net.second(x)[:, 1:]), [48]),
        (lambda net, x: net.first(x.relu()) - net.second(x.abs()), [24, 24]),
        (lambda net, x: net.last(net.first(x)) * net.second(x), [24, 24, 24]),
        (lambda net, x: F.silu(net.first(x)) * net.second(x), [24, 24]),
        (lambda net, x: F.relu(net.first(x)) * F.relu(net.second(x)), [48]),
        (lambda net, x: net.first(x).view(-1) * net.second(x).view(-1), [24, 24]),
        (lambda net, x: net.first(x) * net.first(x) * net.second(x), [48]),
        (lambda net, x: net.first(x) * net.second(x) + net.first.weight.sum(), [24, 24]),
        (lambda net, x: net.first(x) * net.second(x) - net.first(x.sin()), [24, 24, 24]),
    ],
    ids=[
        *(
            "read by PyTorch",
            "returned",
            "views returned",
            "two inputs",
            "read by a layer",
            "two activations",
        ),
        *("one activation", "flattened", "the same layer twice", "weights read", "weights shared"),
    ],
)
def test_what_is_joined(function: Callable[[Any, Tensor], Any], expected: list[int]) -> None:
    model = Branches(function).eval()
    plan = bt.optimize(model, X)
    assert sorted(widths(plan, X)) == expected
    first = plan(X)
    kept = [one.clone() for one in pytree.tree_leaves(first)]
    assert_close(plan(-X), model, -X)
    assert all(map(torch.equal, pytree.tree_leaves(first), kept)), "a result lies in the arena"
    for got, right in zip(pytree.tree_leaves(first), pytree.tree_leaves(model(X)), strict=True):
        assert got.stride() == right.stride()


def test_layers_that_run_twice_share_the_joined_weights() -> None:
    def twice(net: Any, x: Tensor) -> Tensor:
        for _ in range(2):
            x = net.first(x).tanh() * net.second(x)
        return x

    plan = bt.optimize(Branches(twice).eval(), X)
    found = [operation_of(node) for node in program_of(plan, X).nodes]
    weights = [one.layer.weights for one in found if isinstance(one, Linear)]
    assert len(weights) == 2
    assert weights[0] is weights[1]


def test_tied_weights_stay_apart() -> None:
    model = Branches(lambda net, x: net.first(x).tanh() * net.second(x)).eval()
    model.second.weight = model.first.weight
    plan = bt.optimize(model, X)
    assert widths(plan, X) == [24, 24]
    assert_close(plan(X), model, X)


@pytest.mark.parametrize("first", [X, X.repeat(9, 1, 1)], ids=["few rows", "many rows"])
def test_the_first_shape_decides_for_all(first: Tensor) -> None:
    """Otherwise two shapes would keep the weights twice."""
    model = Attended(4).eval()
    plan = bt.optimize(model, first)
    expected = [72, 24] if first is X else [24] * 4
    for x in (X, X.repeat(9, 1, 1)):
        assert widths(plan, x) == expected
        assert_close(plan(x), model, x)


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_changed_part_is_noticed(part: str) -> None:
    model = Attended().eval()
    plan = bt.optimize(model, X)
    plan(X)
    with torch.no_grad():
        getattr(model.v, part).add_(1.0)
    with pytest.raises(TorchError, match="changed"):
        plan(X)
    with pytest.raises(TorchError, match="changed"):
        plan.save(io.BytesIO())


@pytest.mark.parametrize("name", ["pytorch", "convgemm"])
def test_the_joined_copy_is_counted_and_outlives_the_model(name: str) -> None:
    model = Attended(4).eval()
    plan = bt.optimize(model, X)
    program = program_of(plan, X)
    for choice in program.choices.values():
        choice.settle(name) if hasattr(choice.problem, "linear") else choice.settle("pytorch")
    program.bind_anew()
    plan(X)
    assert plan.explain(X).memory.packed >= 3 * 24 * 24 * 4
    right = plan(X)
    assert torch.equal(plan.release()(X), right)
    assert_close(right, model, X)


def test_a_limit_of_memory_leaves_weights_where_they_are() -> None:
    model = Attended(4).eval()
    plan = bt.optimize(model, X, memory="eager")
    assert widths(plan, X) == [24] * 4
    assert_close(plan(X), model, X)


@pytest.mark.parametrize(
    "damage",
    [
        lambda parts: parts.pop(),
        lambda parts: parts.append(99),
        lambda parts: parts.append("0"),
        lambda parts: parts.clear(),
        lambda parts: parts.append(parts[0]),
    ],
    ids=["a part less", "no such part", "a text", "no parts", "a part more"],
)
def test_a_damaged_file_is_refused(damage: Callable[[list[Any]], object]) -> None:
    file = io.BytesIO()
    bt.optimize(Attended().eval(), X).save(file)
    content, tensors = read(io.BytesIO(file.getvalue()))
    (joined,) = [one for one in content["weights"] if "joined" in one]
    damage(joined["joined"])
    changed = io.BytesIO()
    write(changed, content, tensors)
    changed.seek(0)
    with pytest.raises(TorchError, match="cannot be read here"):
        bt.load(changed)


@pytest.mark.parametrize("bounds", [(24, 47), (24, 48.5), (60, 84), (30, 42)], ids=str)
def test_a_part_of_another_size_is_refused(
    bounds: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are given addresses: a part must have the shape that its readers expect.

    PyTorch's attention, which could win the race, would take fewer heads of keys.
    """
    monkeypatch.setattr(optimizing, "tune", settle_natively)
    file = io.BytesIO()
    bt.optimize(Attended(4).eval(), X).save(file)
    content, tensors = read(io.BytesIO(file.getvalue()))
    part = [one for one in content["programs"][0]["nodes"] if "slice" in one.get("target", "")][1]
    part["args"][2:] = bounds
    changed = io.BytesIO()
    write(changed, content, tensors)
    changed.seek(0)
    with pytest.raises(TorchError, match=r"was changed|cannot be read here|was planned for"):
        bt.load(changed)(X)
