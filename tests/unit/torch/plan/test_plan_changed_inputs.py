"""Models that change their inputs in place: a plan leaves them as eager mode does."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.plan.optimized import OptimizedModel

PLACES = 8
NEW = torch.linspace(-2, 2, 8).sin().reshape(1, 2, 1, 4)
AT = torch.tensor([3])


class Function(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> object:
        return self.function(*given)


def cache(seed: int = 0) -> Tensor:
    return torch.randn(1, 2, PLACES, 4, generator=torch.Generator().manual_seed(seed))


def operators(plan: OptimizedModel) -> list[str]:
    (planned,) = plan._programs.values()
    return [str(node.target) for node in planned.program.nodes if node.op == "call_function"]


def by_index(c: Tensor, x: Tensor, at: Tensor) -> object:
    c.index_copy_(2, at, x)
    return c * 2, c


def by_tensor(c: Tensor, x: Tensor, at: Tensor) -> object:
    c[:, :, at] = x
    return c + 1


def by_slice(c: Tensor, x: Tensor, at: Tensor) -> object:
    c[:, :, 2:3].copy_(x)
    return c[:, :, :4] * at


def by_layer(c: Tensor, x: Tensor, at: Tensor) -> object:
    layer = c[0]
    layer.index_copy_(1, at, x[0])
    layer.index_copy_(1, at + 1, 2 * x[0])
    return layer * 2, c.sum()


def accumulated(c: Tensor, x: Tensor, at: Tensor) -> object:
    c.index_put_((torch.tensor([0]), torch.tensor([1]), at), x[:, 0, 0], accumulate=True)
    return c + 0


def in_a_part(c: Tensor, x: Tensor, at: Tensor) -> object:
    c[:, :, -1:].add_(x)
    return c.sum(dim=2) + at


def rolled(c: Tensor, x: Tensor, at: Tensor) -> object:
    c.copy_(torch.roll(c, -1, 2))
    c[:, :, -1:] = x
    return c.sum(dim=2) + at


def twice_whole(c: Tensor, x: Tensor, at: Tensor) -> object:
    c.mul_(2)
    c.add_(x)
    return c.sum() + at


def old_as_output(c: Tensor, x: Tensor, at: Tensor) -> object:
    old = c.clone()
    c.index_copy_(2, at, x)
    return old, c


def old_read_later(c: Tensor, x: Tensor, at: Tensor) -> object:
    old = c.clone()
    c.index_copy_(2, at, x)
    return old * 3, c + 1


def old_in_dropout(c: Tensor, x: Tensor, at: Tensor) -> object:
    old = nn.functional.dropout(c, training=False).clone()
    c.index_copy_(2, at, x)
    return old + 1


def named_by_dropout(c: Tensor, x: Tensor, at: Tensor) -> object:
    same = nn.functional.dropout(c, training=False)
    c.index_copy_(2, at, x)
    nn.functional.dropout(c.view(-1), training=False).add_(1)
    return same * 2


def shifted(c: Tensor, x: Tensor, at: Tensor) -> object:
    c[:, :, 1:] = c[:, :, :-1].clone()
    return c * x + at


def view_before(c: Tensor, x: Tensor, at: Tensor) -> object:
    part = c[:, :, :5]
    c.index_copy_(2, at, x)
    return part + 1


def through_a_view(c: Tensor, x: Tensor, at: Tensor) -> object:
    flat = c.view(-1)
    flat[3] = 7.0
    return c * x + at, flat


def into_each_other(c: Tensor, x: Tensor, at: Tensor) -> object:
    c[0][1][2] = 4.0
    x.copy_(c[:, :, 2:3])
    c[:, :, :1] = x + 1
    return x, at


def unread(c: Tensor, x: Tensor, at: Tensor) -> object:
    c.zero_()
    return x + at


def swapped(c: Tensor, x: Tensor, at: Tensor) -> object:
    c.copy_(c.transpose(2, 3).reshape(c.shape).clone())
    return x * at


def narrow(c: Tensor, x: Tensor, at: Tensor) -> object:
    c.index_copy_(2, at, x.to(c.dtype))
    return c.add_(x.float()) * 2


IN_PLACE = by_index, by_tensor, by_slice, by_layer, accumulated, rolled
COPIED = (
    *(in_a_part, twice_whole, old_as_output, old_read_later, old_in_dropout, shifted),
    *(named_by_dropout, view_before, through_a_view, into_each_other, unread, swapped, narrow),
)


@pytest.mark.parametrize("function", [*IN_PLACE, *COPIED], ids=lambda one: one.__name__)
@pytest.mark.parametrize(
    ("dtype", "accuracy"), [(torch.float32, "float32"), (torch.bfloat16, "exact")], ids=str
)
def test_each_call_changes_inputs_as_eager_does(
    function: Callable[..., object], dtype: torch.dtype, accuracy: Any
) -> None:
    given = cache().to(dtype), NEW.to(dtype), AT
    eager, planned = ([one.clone() for one in given] for _ in range(2))
    plan = bt.optimize(Function(function).eval(), given, accuracy=accuracy)
    assert torch.equal(given[0], cache().to(dtype)), "optimize changed an example"
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded = bt.load(file)
    for call in (plan, plan, loaded, plan):
        version = planned[0]._version
        with torch.no_grad():
            right, got = pytree.tree_leaves(function(*eager)), pytree.tree_leaves(call(*planned))
        for one, other in zip([*right, *eager], [*got, *planned], strict=True):
            assert one.dtype is other.dtype
            assert torch.equal(one, other)
        assert [one is eager[0] for one in right] == [one is planned[0] for one in got]
        assert planned[0]._version > version
    assert plan.explain(*planned).steps
    assert torch.equal(planned[0], eager[0]), "explain changed an input"


@pytest.mark.parametrize("function", IN_PLACE, ids=lambda one: one.__name__)
def test_only_the_new_rows_are_written(function: Callable[..., object]) -> None:
    plan = bt.optimize(Function(function).eval(), (cache(), NEW, AT))
    found = operators(plan)
    assert not {"aten.index_copy.default", "aten.index_put.default"} & set(found)
    assert not any("scatter" in one for one in found)


def drawn(seed: int) -> Callable[..., object]:
    """Return a function that reads and changes two tensors, their parts, and copies at random."""
    draw = random.Random(seed)
    steps = [
        (draw.randrange(8), draw.randrange(9), draw.randrange(9), draw.randrange(1, 7))
        for _ in range(7)
    ]

    def function(c: Tensor, d: Tensor, x: Tensor, at: Tensor) -> object:
        values, results = [c, d], []
        for kind, first, second, place in steps:
            one, other = values[first % len(values)], values[second % len(values)]
            if kind == 0:
                one.index_copy_(2, at, other[:, :, place : place + 1] + 1)
            elif kind == 1:
                one[:, :, place] = x[:, :, 0] * 2
            elif kind == 2:
                values.append(other.clone())
            elif kind == 3:
                one[0, :, place:].mul_(0.5)
            elif kind == 4:
                results.append(one[:, :, place:] - 1)
            elif kind == 5:
                one.copy_(other.clone())
            elif kind == 6:
                one[0].index_copy_(1, at, x[0])
            else:
                results.append(one)
        return results or c

    return function


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(one, marks=pytest.mark.long) for one in range(12, 200))]
)
def test_random_programs(seed: int) -> None:
    function = drawn(seed)
    eager, planned = ((cache(1), cache(2), NEW.clone(), AT) for _ in range(2))
    plan = bt.optimize(Function(function).eval(), planned)
    for _ in range(2):
        with torch.no_grad():
            right, got = pytree.tree_leaves(function(*eager)), pytree.tree_leaves(plan(*planned))
        assert all(map(torch.equal, right, got))
        assert all(map(torch.equal, eager, planned))


class Counting(nn.Module):
    """Layers to choose algorithms for, around one write that counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, calls: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(self.norm(x)).relu()
            calls[0, 1:2].add_(1)
        return x * calls[0, 1]


def test_open_choices_change_an_input_once_a_call() -> None:
    plan = bt.optimize(Counting().eval(), (torch.randn(3, 8), torch.zeros(1, 4)), tune=False)
    calls = torch.zeros(1, 4)
    for call in range(1, 60):
        plan(torch.randn(3, 8), calls)
        assert calls.tolist() == [[0, 3 * call, 0, 0]]


def plan_of(function: Callable[..., object]) -> OptimizedModel:
    return bt.optimize(Function(function).eval(), (cache(), NEW, AT))


def overlapping() -> tuple[Tensor, Tensor, Tensor]:
    whole = torch.zeros(1, 2, PLACES + 1, 4)
    return whole[:, :, :PLACES], whole[:, :, PLACES - 1 : PLACES], AT


def expanded() -> tuple[Tensor, Tensor, Tensor]:
    return cache()[:, :1].clone().expand(1, 2, PLACES, 4), NEW, AT


def made_in_inference_mode() -> tuple[Tensor, Tensor, Tensor]:
    with torch.inference_mode():
        return cache(), NEW, AT


def negated() -> tuple[Tensor, Tensor, Tensor]:
    return torch._neg_view(cache()), NEW, AT


def wants_gradient() -> tuple[Tensor, Tensor, Tensor]:
    return cache().requires_grad_(), NEW, AT


REFUSED = [
    (overlapping, "share memory"),
    (expanded, "lie at one address"),
    (made_in_inference_mode, "made in inference mode"),
    (negated, "negated view"),
    (wants_gradient, "no backward pass"),
]


@pytest.mark.parametrize(
    ("given", "message"), REFUSED, ids=lambda one: getattr(one, "__name__", "")
)
def test_inputs_that_cannot_be_changed(
    given: Callable[[], tuple[Tensor, Tensor, Tensor]], message: str
) -> None:
    plan, tensors = plan_of(by_index), given()
    before = [one.detach().clone() for one in tensors]
    with pytest.raises(TorchError, match=message):
        plan(*tensors)
    assert all(map(torch.equal, tensors, before))


def test_inputs_that_the_plan_does_not_change_may_share_memory() -> None:
    def function(c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        c[:, :, 1:2] = x
        return c * y

    plan = bt.optimize(Function(function).eval(), (cache(), NEW, NEW))
    got, right = cache(), cache()
    assert torch.equal(plan(got, NEW, NEW), function(right, NEW, NEW))
    assert torch.equal(got, right)


def test_parts_of_one_tensor_that_lie_between_each_other() -> None:
    def function(keys: Tensor, values: Tensor, x: Tensor) -> Tensor:
        keys[:, :, 1:2], values[:, :, 2:3] = x, -x
        return keys + values

    both = torch.zeros(1, 2, PLACES, 8)
    keys, values = both[..., :4], both[..., 4:]
    plan = bt.optimize(Function(function).eval(), (keys, values, NEW))
    assert not both.any()
    eager = both.clone()
    for _ in range(2):
        right = function(eager[..., :4], eager[..., 4:], NEW)
        assert torch.equal(plan(keys, values, NEW), right)
        assert torch.equal(both, eager)
    with pytest.raises(TorchError, match="inputs 0 and 1 share memory"):
        plan(both[..., :4], both[..., 2:6], NEW)


def test_inference_mode_and_leaves_without_gradients() -> None:
    plan = plan_of(by_index)
    with torch.inference_mode():
        made = cache()
        plan(made, NEW, AT)
        right = cache()
        by_index(right, NEW, AT)
        assert torch.equal(made, right)
    leaf = cache().requires_grad_()
    with torch.no_grad():
        plan(leaf, NEW, AT)
    assert torch.equal(leaf, right)


def test_a_call_that_fails_leaves_inputs_as_eager_does() -> None:
    def function(c: Tensor, d: Tensor, at: Tensor) -> object:
        c.index_copy_(2, torch.tensor([1]), NEW)
        d.index_copy_(2, at, NEW)
        return c + d

    plan = bt.optimize(Function(function).eval(), (cache(1), cache(2), AT))
    got, right = (cache(1), cache(2)), (cache(1), cache(2))
    for run, given in ((plan, got), (function, right)):
        with torch.no_grad(), pytest.raises(IndexError, match="out of"):
            run(*given, torch.tensor([PLACES]))
    assert all(map(torch.equal, got, right))
    plan(*got, AT)
    function(*right, AT)
    assert all(map(torch.equal, got, right))


@pytest.mark.parametrize("change", [lambda c: c.transpose_(0, 1), lambda c: c.unsqueeze_(0)])
def test_a_model_that_reshapes_its_input_is_refused(change: Callable[[Tensor], Tensor]) -> None:
    given = cache()
    with pytest.raises(TorchError, match="changes the shape or strides of an input"):
        bt.optimize(Function(lambda c: change(c) + 1).eval(), given)
    assert given.shape == cache().shape


@pytest.mark.parametrize("name", ["c", "view"])
def test_a_change_through_a_view_that_no_schema_shows_is_refused(name: str) -> None:
    def change(c: Tensor) -> Tensor:
        view = torch.einsum("ij->ji", c)
        (c if name == "c" else view).add_(1)
        return view * 2

    with pytest.raises(TorchError, match=r"aten\.einsum.* returns a view .* clone the value first"):
        bt.optimize(Function(change).eval(), torch.randn(3, 4))


def test_a_view_that_no_schema_shows_may_be_taken_after_the_change() -> None:
    model = Function(lambda c: torch.einsum("ij->ji", c.add_(1)) * 2).eval()
    planned, eager = torch.ones(3, 4), torch.ones(3, 4)
    plan = bt.optimize(model, torch.randn(3, 4))
    assert torch.equal(plan(planned), model(eager))
    assert torch.equal(planned, eager)


def test_a_pure_plan_refuses_a_model_that_changes_its_input() -> None:
    for function in (by_index, through_a_view):
        with pytest.raises(TorchError, match="changes"):
            bt.optimize(Function(function).eval(), (cache(), NEW, AT), pure=True)
