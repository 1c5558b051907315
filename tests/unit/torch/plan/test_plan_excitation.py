"""Squeeze-and-excitation as one step of a plan."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plan_results import is_close, operations
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import TorchError

Then = Callable[[Any, Tensor], Tensor]
CHANNELS, HIDDEN = 20, 6


class Block(nn.Module):
    """A convolution, and squeeze-and-excitation in one of several forms."""

    def __init__(self, then: Then, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.beside = nn.Conv2d(3, CHANNELS, 1)
        self.squeeze = nn.Conv2d(CHANNELS, HIDDEN, 1, bias=bias)
        self.excite = nn.Conv2d(HIDDEN, CHANNELS, 1, bias=bias)
        self.wide = nn.Conv2d(CHANNELS, HIDDEN, 3, padding=1)
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self, x)

    def gate(self, x: Tensor) -> Tensor:
        return self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))).sigmoid()


def usual(one: Block, x: Tensor) -> Tensor:
    x = one.before(x)
    return x * one.gate(x)


def of_mobilenet(one: Block, x: Tensor) -> Tensor:
    x = F.hardswish(one.before(x))
    inner = F.silu(one.squeeze(x.mean((2, 3), keepdim=True)))
    return F.hardsigmoid(one.excite(inner)) * x


def of_resnet(one: Block, x: Tensor) -> Tensor:
    y, x = one.before(x), F.max_pool2d(one.beside(x), 3, 1, 1)
    return F.relu(y * one.gate(y) + x)


def added_to_itself(one: Block, x: Tensor) -> Tensor:
    x = one.before(x)
    return (x * one.gate(x) + x).sigmoid() + x


BEFORE = ["convolution"]
CASES = {
    usual: [*BEFORE, "excitation"],
    of_mobilenet: [*BEFORE, "excitation"],
    of_resnet: ["rows", *BEFORE, "convolution", "pooling", "excitation"],
    added_to_itself: [*BEFORE, "excitation", "written", "written"],
}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("then", CASES, ids=lambda one: one.__name__)
def test_one_step_computes_it(then: Then, bias: bool) -> None:
    model, x = Block(then, bias).eval(), torch.randn(2, 3, 9, 7)
    plan = bt.optimize(model, x)
    assert operations(plan, x) == CASES[then]
    for _ in range(2):  # a step in place changes nothing that the next call reads
        assert is_close(plan, model, x)


def gate_of_another(one: Block, x: Tensor) -> Tensor:
    return one.before(x) * one.gate(one.beside(x))


def gate_of_each_image(one: Block, x: Tensor) -> Tensor:
    y = one.before(x)
    return y[:1] * one.gate(y)


def gate_read_twice(one: Block, x: Tensor) -> Tensor:
    y = one.before(x)
    gate = one.gate(y)
    return y * gate + gate


def wide_kernel(one: Block, x: Tensor) -> Tensor:
    y = one.before(x)
    return y * one.excite(F.relu(one.wide(F.adaptive_avg_pool2d(y, 1)))).sigmoid()


def gate_by_tanh(one: Block, x: Tensor) -> Tensor:
    y = one.before(x)
    return y * one.excite(F.relu(one.squeeze(F.adaptive_avg_pool2d(y, 1)))).tanh()


def no_activation(one: Block, x: Tensor) -> Tensor:
    y = one.before(x)
    return y * one.excite(one.squeeze(F.adaptive_avg_pool2d(y, 1))).sigmoid()


def gate_of_pixels(one: Block, x: Tensor) -> Tensor:
    y = one.before(x)
    return y * one.excite(F.relu(one.squeeze(y))).sigmoid()


OTHERS = (
    *(gate_of_another, gate_of_each_image, gate_read_twice, wide_kernel),
    *(gate_by_tanh, no_activation, gate_of_pixels),
)


@pytest.mark.parametrize("then", OTHERS, ids=lambda one: one.__name__)
def test_others_stay(then: Then) -> None:
    model, x = Block(then).eval(), torch.randn(2, 3, 9, 7)
    plan = bt.optimize(model, x)
    assert "excitation" not in operations(plan, x)
    assert is_close(plan, model, x)


def test_a_changed_parameter_is_noticed() -> None:
    model, x = Block(usual).eval(), torch.randn(2, 3, 9, 7)
    plan = bt.optimize(model, x)
    plan(x)
    with torch.no_grad():
        model.excite.bias.add_(1.0)
    with pytest.raises(TorchError, match="of the model was changed"):
        plan(x)


def test_it_is_saved_and_loaded() -> None:
    model, x, file = Block(of_resnet).eval(), torch.randn(2, 3, 9, 7), io.BytesIO()
    plan = bt.optimize(model, x)
    plan.save(file)
    again = bt.load(io.BytesIO(file.getvalue()))
    assert "excitation" in operations(again, x)
    assert torch.equal(again(x), plan(x))
    assert torch.equal(plan.release()(x), again(x))


def test_a_file_whose_operands_do_not_fit_is_refused() -> None:
    model, x = Block(usual).eval(), torch.randn(2, 3, 9, 7)
    plan = bt.optimize(model, x)
    leaves, spec = torch.utils._pytree.tree_flatten(((x,), {}))
    node = next(one for one in plan.program(leaves, spec)[0].nodes if "excitation" in one.name)
    operation, given = node.meta["operation"], node.args
    operation.check(node)
    y, squeeze, squeeze_bias, excite, excite_bias = given
    for args in (
        given[:4],
        (squeeze, squeeze, squeeze_bias, excite, excite_bias),
        (y, excite, squeeze_bias, excite, excite_bias),
        (y, squeeze, excite_bias, excite, excite_bias),
        (y, squeeze, squeeze_bias, excite, y),
        (*given, squeeze),
    ):
        node.args = args
        with pytest.raises(ValueError, match="does not"):
            operation.check(node)
    node.args = given
