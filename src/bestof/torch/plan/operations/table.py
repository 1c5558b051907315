"""The table of operations: to add one, add its file and its class here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Node

from bestof.torch.plan.layers.frozen_weights import FrozenWeights
from bestof.torch.plan.operations.attention import Attention
from bestof.torch.plan.operations.by_row import ByRow
from bestof.torch.plan.operations.channels import ToChannelsFirst, ToChannelsLast
from bestof.torch.plan.operations.convolution import Convolution
from bestof.torch.plan.operations.dense import Dense
from bestof.torch.plan.operations.excitation import Excitation
from bestof.torch.plan.operations.gated_linear import GatedLinear
from bestof.torch.plan.operations.inverted_residual import InvertedResidual
from bestof.torch.plan.operations.joined_channels import JoinedChannels
from bestof.torch.plan.operations.linear import Linear
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.operations.pixel_linear import PixelLinear
from bestof.torch.plan.operations.pooling import Pooling
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.operations.rotary import Rotary
from bestof.torch.plan.operations.row_norm import RowNorm
from bestof.torch.plan.operations.written import Written

OPERATIONS: tuple[type[Operation], ...] = (
    Convolution,
    InvertedResidual,
    Linear,
    GatedLinear,
    PixelLinear,
    Dense,
    RowNorm,
    Rotary,
    Attention,
    Pooling,
    Excitation,
    JoinedChannels,
    ToChannelsLast,
    ToChannelsFirst,
    Written,
    ByRow,
)
RECOGNISERS: dict[Any, Callable[[Rewriter, Node], object]] = {
    target: recognise
    for operation in OPERATIONS
    for target, recognise in operation.recognisers().items()
}
_BY_NAME = {one.name: one for one in OPERATIONS}


def decode_operation(content: dict[str, Any], weights: list[FrozenWeights]) -> Operation:
    """Return the operation of a JSON value; KeyError if no operation has its name."""
    return _BY_NAME[content["name"]].decode(content, weights)
