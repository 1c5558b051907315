"""Products of bfloat16 and float16, as autocast makes them, are chosen in all passes."""

from __future__ import annotations

import pytest
import torch
from product_case import enable, random, shim_of
from torch import Tensor, nn

import bestof.torch as integration
from bestof.selection.state.journal import DisqualificationEntry
from bestof.torch.dispatch.overrides import operation_override

DTYPES = [torch.bfloat16, torch.float16]
ROWS = ["float32", "float32 native blocked"]


def layer() -> nn.Linear:
    found = nn.Linear(96, 72)
    with torch.no_grad():
        found.weight.copy_(random(72, 96) / 10)
        found.bias.copy_(random(72, seed=1))
    return found


def step(model: nn.Module, x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Return the result and the gradients of one step; the weight's are summed in `dtype`."""
    leaf = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        y = model(leaf)
    loss = (y.float() * random(*y.shape, seed=3)).sum()
    return [y.detach(), *torch.autograd.grad(loss, [leaf, *model.parameters()])]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_a_training_step(name: str, dtype: torch.dtype) -> None:
    """Operands are exact, sums are float32: each result is off by one rounding of its type."""
    model, x = layer(), random(96, 96, seed=2)
    own = step(model, x, dtype)
    override = enable(name)
    for _ in range(4):
        got = step(model, x, dtype)
    problems = override.selector.report().problems
    assert [one.problem.split()[0] for one in problems] == ["addmm", "mm", "mm"]
    assert {one.decision for one in problems} == {name}
    assert all(str(dtype).removeprefix("torch.") in one.problem for one in problems)
    narrow, weight = x.to(dtype).double(), model.weight.detach().to(dtype).double()
    upstream = random(96, 72, seed=3).to(dtype).double()
    bias = model.bias.detach().to(dtype).double()
    exact = [narrow @ weight.T + bias, upstream @ weight, upstream.T @ narrow]
    terms = [narrow.abs() @ weight.abs().T + 4, upstream.abs() @ weight.abs()]
    terms.append(upstream.abs().T @ narrow.abs())
    unit = torch.finfo(dtype).eps / 2
    for mine, theirs, right, size in zip(got[:3], own[:3], exact, terms, strict=True):
        assert mine.dtype is theirs.dtype
        assert mine.stride() == theirs.stride()
        bound = 1.01 * unit * right.abs() + 97 * 2**-24 * size
        assert ((mine.double() - right).abs() <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_rows_agree_with_pytorch_and_one_is_chosen(dtype: torch.dtype) -> None:
    model, x = layer(), random(96, 96, seed=2)
    integration.enable()
    override = operation_override("product")
    assert override is not None
    for _ in range(80):
        step(model, x, dtype)
    problems = override.selector.report().problems
    assert len(problems) == 3
    assert all(one.settled for one in problems)
    entries = override.selector.journal.entries()
    assert not [one for one in entries if isinstance(one, DisqualificationEntry)]


def test_results_beyond_float16_are_infinite_as_pytorchs_are() -> None:
    a, b = 100 * random(96, 96).half(), 100 * random(96, 72, seed=1).half()
    own = torch.mm(a, b)
    assert own.isinf().any()
    assert not own.isinf().all()
    override = enable("float32")
    for _ in range(4):
        got = torch.mm(a, b)
    assert torch.equal(got.isinf(), own.isinf())
    (problem,) = override.selector.report().problems
    assert problem.decision == "float32"


def test_mixed_types_are_refused_by_pytorch() -> None:
    shim = shim_of(enable("float32"))
    for _ in range(4):
        with pytest.raises(RuntimeError, match="dtype"):
            torch.mm(random(96, 96).half(), random(96, 72).bfloat16())
        with pytest.raises(RuntimeError, match="dtype"):
            torch.addmm(random(72), random(96, 96).half(), random(96, 72).half())
    assert shim.asked == 0
