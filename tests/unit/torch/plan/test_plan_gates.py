"""Linear layers that a gate multiplies: one step of a plan."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plan_results import is_close, operations
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.errors import BestofWarning, TorchError
from bestof.torch.plan.algorithms.table import algorithm, table
from bestof.torch.plan.file.container import read, write
from bestof.torch.plan.layers.problem import FusedProblem
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.convolution_step import ConvolutionStep, selector


class Gated(nn.Module):
    """A function of two layers, and a layer behind."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], ins: int = 24) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up = (nn.Linear(ins, 40, bias) for bias in (True, False))
        self.down = nn.Linear(40, ins)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.function(self, x))
        return found


def by_silu(net: Any, x: Tensor) -> Tensor:
    return F.silu(net.gate(x)) * net.up(x)


def program_of(plan: OptimizedModel, x: Tensor) -> Program:
    return plan.program(*pytree.tree_flatten(((x,), {})))[0]


def gated_step(binding: Any) -> ConvolutionStep:
    found = (step.convolution for step in binding.steps)
    return next(one for one in found if one is not None and one.layer.gated)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (by_silu, ["linear", "gated linear silu"]),
        (lambda net, x: net.up(x) * F.silu(net.gate(x)), ["linear", "gated linear silu"]),
        (lambda net, x: net.up(x).mul(F.gelu(net.gate(x))), ["linear", "gated linear gelu"]),
        (
            lambda net, x: net.up(x) * F.gelu(net.gate(x), approximate="tanh"),
            ["linear", "gated linear gelu_tanh"],
        ),
        (
            lambda net, x: F.relu(net.gate(x)) * net.gate(x),
            ["linear", "aten.relu.default", "aten.mul.Tensor"],
        ),
    ],
    ids=["silu", "the other way", "gelu", "gelu by tanh", "the same layer twice"],
)
@pytest.mark.parametrize("rows", [1, 9, 70])
def test_a_gate_is_part_of_the_product(
    function: Callable[[Any, Tensor], Tensor], expected: list[str], rows: int
) -> None:
    model, x = Gated(function).eval(), torch.randn(2, rows, 24)
    plan = bt.optimize(model, x)
    assert operations(plan, x) == [*expected, "linear"]
    for given in (x, -x):
        assert is_close(plan, model, given)
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded = bt.load(file)
    assert operations(loaded, x) == [*expected, "linear"]
    assert is_close(loaded, model, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda net, x: F.silu(net.gate(x)) * x.repeat(1, 1, 2)[..., :40],
        lambda net, x: F.silu(net.gate(x)) * net.up(x)[..., :1],
        lambda net, x: torch.tanh(net.gate(x)) * net.up(x),
        lambda net, x: (y := F.silu(net.gate(x))) * net.up(x) - y,
        lambda net, x: F.silu(y := net.gate(x)) * net.up(x) - y,
        lambda net, x: F.silu(y := net.gate(x)) * y,
        lambda net, x: (y := F.silu(net.gate(x))) * y,
        lambda net, x: F.silu(net.gate(x)) * 2.0,
    ],
    ids=[
        *("a value of PyTorch's", "broadcast", "no activation of kernels", "read twice"),
        *("read before", "gates itself", "squared", "a number"),
    ],
)
def test_what_only_resembles_a_gate_stays(function: Callable[[Any, Tensor], Tensor]) -> None:
    model, x = Gated(function).eval(), torch.randn(2, 9, 24)
    plan = bt.optimize(model, x)
    assert not [name for name in operations(plan, x) if name.startswith("gated")]
    assert is_close(plan, model, x)


@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize("ins", [24, 1700], ids=["one block of depth", "several"])
def test_every_algorithm_multiplies_by_the_gate(rows: int, ins: int) -> None:
    model, x = Gated(by_silu, ins).eval(), torch.randn(rows, ins)
    plan = bt.optimize(model, x)
    program = program_of(plan, x)
    choice = next(
        one
        for one in program.choices.values()
        if isinstance(one.problem, FusedProblem) and one.problem.gated
    )
    assert isinstance(choice.problem, FusedProblem)
    names = [name for name in table() if algorithm(name).can_run(choice.problem)]
    assert {"pytorch", "convgemm", "blocked"} <= set(names)
    for name in names:
        choice.settle(name)
        program.bind_anew()
        assert is_close(plan, model, x), name


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_gate_of_bfloat16(rows: int) -> None:
    """The native product rounds the gated result once, PyTorch three times, by 2^-8 each."""
    model, x = Gated(by_silu).eval().bfloat16(), torch.randn(rows, 24).bfloat16()
    plan = bt.optimize(model, x)
    assert operations(plan, x) == ["linear", "gated linear silu", "linear"]
    binding = program_of(plan, x).borrow()
    binding.slots[0] = x
    step = gated_step(binding)
    for run in binding.runs:
        run()
    gate, out = step.placed.gate, step.placed.out
    assert gate is not None
    exact = F.silu(F.linear(x.double(), *map(_doubled, (model.gate.weight, model.gate.bias))))
    exact *= gate.double()
    for name, roundings in (("blocked_bf16", 1), ("pytorch", 3)):
        out.fill_(torch.nan)
        step.runner(name)()
        # 24 terms of sums round by 2^-24 each, far below; an error of the sum grows by 1.1 in silu.
        bound = 1.1 * roundings * 2.0**-8 * exact.abs().max() * 1.01
        assert (out.double() - exact).abs().max() <= bound, name


def _doubled(value: Tensor) -> Tensor:
    return value.detach().double()


def test_a_wrong_algorithm_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm that forgets the gate is replaced by PyTorch's."""
    model, x = Gated(by_silu).eval(), torch.randn(23, 24)
    kind = type(algorithm("convgemm"))
    monkeypatch.setattr(kind, "gates", lambda _self, _problem: True)
    monkeypatch.setenv("BESTOF_FORCE", "fused convolution=convgemm")
    selector.cache_clear()  # orders are read when a selector is made
    try:
        with pytest.warns(BestofWarning, match="is off by"):
            plan = bt.optimize(model, x)
    finally:
        selector.cache_clear()
    assert is_close(plan, model, x)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one["operation"].update(gated=False),
        lambda one: one["operation"].update(gated=1),
        lambda one: one["operation"].update(pooled=True),
        lambda one: one["operation"].update(name="linear"),
        lambda one: one["args"].pop(),
        lambda one: one["args"].append(one["args"][0]),
        lambda one: one["args"].__setitem__(1, one["args"][0]),
    ],
    ids=["no gate", "a number", "pooled", "another name", "one less", "one more", "another shape"],
)
def test_a_damaged_file_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    file, x = io.BytesIO(), torch.randn(5, 24)
    bt.optimize(Gated(by_silu).eval(), x).save(file)
    content, tensors = read(io.BytesIO(file.getvalue()))
    (gated,) = [
        one
        for one in content["programs"][0]["nodes"]
        if one.get("operation", {}).get("name") == "gated linear"
    ]
    change(gated)
    changed = io.BytesIO()
    write(changed, content, tensors)
    changed.seek(0)
    with pytest.raises(TorchError, match="cannot be read here"):
        bt.load(changed)


def test_the_gate_stays_where_it_is_read_again() -> None:
    def function(net: Any, x: Tensor) -> Tensor:
        up = net.up(x)
        found: Tensor = F.silu(net.gate(x)) * up + up
        return found

    model, x = Gated(function).eval(), torch.randn(33, 24)
    plan = bt.optimize(model, x)
    assert "gated linear silu" in operations(plan, x)
    assert is_close(plan, model, x)
