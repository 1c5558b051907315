"""Which operators are fused into the convolution before them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.torch.plan.operations.channels import ToChannelsLast
from bestof.torch.plan.operations.convolution import Convolution
from bestof.torch.plan.operations.joined_channels import JoinedChannels
from bestof.torch.plan.operations.pooling import Pooling
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run.program import Program


class Around(nn.Module):
    def __init__(self, function: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.function = function
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


def program(function: Callable[[nn.Module, Tensor], object]) -> Program:
    leaves, spec = pytree.tree_flatten(((torch.randn(1, 4, 6, 6),), {}))
    return OptimizedModel(Around(function).eval(), "float32").program(leaves, spec)[0]


def operations(function: Callable[[nn.Module, Tensor], object]) -> list[str]:
    """What each step is, the copies into channels last left out."""

    def name(node: Node) -> str:
        operation = node.meta.get("operation")
        if isinstance(operation, Convolution):
            layer = operation.layer
            extras = [layer.activation] if layer.activation else []
            extras += ["residual"] if len(node.args) > 1 else []
            extras += ["norm"] if layer.weights.norm is not None else []
            return " ".join(["conv", *extras])
        return operation.window.kind if isinstance(operation, Pooling) else str(node.target)

    nodes = [node for node in program(function).nodes if node.op == "call_function"]
    return [name(node) for node in nodes if node.meta.get("operation") != ToChannelsLast()]


@pytest.mark.parametrize(
    ("activation", "name"),
    [
        (F.relu, "relu"),
        (lambda x: F.relu(x, inplace=True), "relu"),
        (F.relu6, "relu6"),
        (lambda x: x.clamp(0, 6), "relu6"),
        (lambda x: x.clamp(min=0), "relu"),
        (F.silu, "silu"),
        (F.hardswish, "hard_swish"),
        (F.gelu, "gelu"),
        (lambda x: F.gelu(x, approximate="tanh"), "gelu_tanh"),
        (lambda x: F.leaky_relu(x, 0.2), "leaky_relu"),
    ],
)
def test_activations(activation: Callable[[Tensor], Tensor], name: str) -> None:
    assert operations(lambda m, x: activation(m.first(x))) == [f"conv {name}"]
    assert operations(lambda m, x: activation(m.norm(m.first(x)))) == [f"conv {name} norm"]
    assert operations(lambda m, x: activation(m.first(x) + x)) == [f"conv {name} residual"]


def test_an_addition_of_two_convolutions_goes_into_one() -> None:
    assert operations(lambda m, x: F.relu(m.first(x) + m.second(x))).count("conv") == 1
    assert "conv relu residual" in operations(lambda m, x: F.relu(m.first(x) + m.second(x)))


def read_twice(m: nn.Module, x: Tensor) -> Tensor:
    y = m.first(x)
    return F.relu(y) + y


def also_an_output(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    y = m.first(x)
    return y, F.relu(y)


@pytest.mark.parametrize(
    "function",
    [
        read_twice,
        also_an_output,
        lambda m, x: F.elu(m.first(x)),
        lambda m, x: m.first(x).clamp(0, 5),
        lambda m, x: m.first(x) + x[:, :1],  # a residual of another shape
        lambda m, x: torch.add(m.first(x), x, alpha=2),
        lambda m, x: m.first(x) + 1.0,
    ],
)
def test_what_must_stay(function: Callable[[nn.Module, Tensor], object]) -> None:
    assert operations(function)[0] == "conv"
    assert len(operations(function)) > 1


def test_a_norm_alone_is_a_step_of_its_own() -> None:
    nodes = [node.meta.get("operation") for node in program(lambda m, x: F.relu(m.norm(x))).nodes]
    (norm,) = (one for one in nodes if isinstance(one, JoinedChannels))
    assert (norm.activation, norm.added) == ("relu", False)
    assert norm.weights is not None


def test_poolings() -> None:
    assert operations(lambda _, x: F.max_pool2d(x, 3, 2, 1)) == ["max"]
    assert operations(lambda _, x: F.avg_pool2d(x, 2)) == ["average"]
    assert operations(lambda _, x: F.adaptive_avg_pool2d(x, 3)) == ["average"]
    assert operations(lambda _, x: x.mean((-1, -2), keepdim=True)) == ["average"]
    for other in (
        lambda _, x: F.avg_pool2d(x, 4, 3, ceil_mode=True),
        lambda _, x: F.max_pool2d(x, 2, dilation=2),
        lambda _, x: F.avg_pool2d(x, 2, divisor_override=3),
        lambda _, x: F.adaptive_avg_pool2d(x, 4),
    ):
        assert all(name.startswith("aten.") for name in operations(other))


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (4, 3), (5, 7), (4, 2)])
def test_the_last_window_of_a_maximum_may_reach_beyond_the_image(
    kernel: int, stride: int, padding: int
) -> None:
    for extent in range(5, 12):
        model = nn.MaxPool2d(kernel, stride, padding, ceil_mode=True).eval()
        x = torch.randn(2, 3, extent, 16 - extent) - 5.0
        plan = bt.optimize(model, x)
        assert torch.equal(plan(x), model(x))
    assert operations(lambda _, x: F.max_pool2d(x, kernel, stride, padding, 1, True)) == ["max"]


def test_operators_without_effect_are_dropped() -> None:
    assert operations(
        lambda m, x: F.dropout(m.first(x).contiguous().clone(), 0.5, m.training).detach()
    ) == ["conv"]


def test_layers_of_two_shapes_share_their_weights() -> None:
    plan = OptimizedModel(Around(lambda m, x: m.norm(m.first(x))).eval(), "float32")
    programs = []
    for batch in (1, 2):
        leaves, spec = pytree.tree_flatten(((torch.randn(batch, 4, 6, 6),), {}))
        programs.append(plan.program(leaves, spec)[0])
    first, second = (
        next(node.meta["operation"].layer.weights for node in one.choices) for one in programs
    )
    assert first is second
