"""Products of bfloat16 and float16, as autocast makes them, are chosen in all passes."""

from __future__ import annotations

import pytest
import torch
from product_case import enable, random, shim_of
from torch import Tensor, nn

import bestof.torch as integration
from bestof.selection import use_policy
from bestof.selection.state.journal import DisqualificationEntry
from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.ops import table
from bestof.torch.ops.product import product

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


EMULATED = [set(), {"float16"}, {"bfloat16", "float16"}]


@pytest.mark.parametrize("emulated", EMULATED, ids=lambda one: " ".join(sorted(one)))
def test_smaller_products_of_emulated_types_are_chosen_for(
    emulated: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the limit of 2^19 is enough; half of that is not."""
    monkeypatch.setattr(product, "sums_in_float32", lambda name: name not in emulated)
    monkeypatch.setattr(table, "OPERATIONS", tuple(type(one)() for one in table.OPERATIONS))
    override = enable("float32")
    for dtype in (torch.float32, *DTYPES):
        for rows in (32, 64):
            a, b = random(rows, 64).to(dtype), random(64, 32, seed=1).to(dtype)
            for _ in range(4):
                torch.mm(a, b)
    met = {one.problem for one in override.selector.report().problems}
    assert met == {f"mm m64,k64,n32 {name} threads=1" for name in emulated}
    given = override.operation.arguments("aten::mm", (random(64, 64).half(), random(64, 32).half()))
    assert (given is not None) == ("float16" in emulated)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_plan_chooses_for_computed_values(dtype: torch.dtype) -> None:
    class Gram(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.mm(x, x.t())

    use_policy("fixed:float32")
    x = random(128, 96).to(dtype)
    plan = integration.optimize(Gram().eval(), (x,))
    steps = {one.problem: one.algorithm for one in plan.explain(x, repeats=1).steps}
    name = str(dtype).removeprefix("torch.")
    assert steps[f"product mm m128,k96,n128 b=columns {name} frozen"] == "float32"
    right = x.double() @ x.double().t()
    unit, size = torch.finfo(dtype).eps, x.double().abs() @ x.double().abs().t()
    assert ((plan(x).double() - right).abs() <= unit * right.abs() + 97 * 2**-24 * size).all()
