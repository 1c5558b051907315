"""The operations. Each consumer takes them from here."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from bestof.errors import InvalidArgument
from bestof.torch.ops.activation.gelu import Gelu
from bestof.torch.ops.activation.gelu_backward import GeluBackward
from bestof.torch.ops.activation.silu import Silu
from bestof.torch.ops.activation.silu_backward import SiluBackward
from bestof.torch.ops.attention.backward import AttentionBackward
from bestof.torch.ops.attention.forward import AttentionForward
from bestof.torch.ops.convolution.conv3d import Conv3d
from bestof.torch.ops.convolution.conv3d_input_gradient import Conv3dInputGradient
from bestof.torch.ops.convolution.conv3d_weight_gradient import Conv3dWeightGradient
from bestof.torch.ops.convolution.passes import PASSES
from bestof.torch.ops.loss.focal_loss import FocalLoss
from bestof.torch.ops.norm.frozen_norm import FrozenNorm
from bestof.torch.ops.norm.frozen_norm_backward import FrozenNormBackward
from bestof.torch.ops.norm.group_norm_backward import GroupNormBackward
from bestof.torch.ops.norm.layer_norm import LayerNorm
from bestof.torch.ops.norm.layer_norm_backward import LayerNormBackward
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.pooling.avg_pool2d import AvgPool2d
from bestof.torch.ops.pooling.avg_pool2d_backward import AvgPool2dBackward
from bestof.torch.ops.pooling.max_pool2d import MaxPool2d
from bestof.torch.ops.pooling.max_pool2d_backward import MaxPool2dBackward
from bestof.torch.ops.product.product import Product
from bestof.torch.ops.random.bernoulli import Bernoulli
from bestof.torch.ops.rotary.rotary import Rotary
from bestof.torch.ops.softmax.softmax import Softmax

# Operations keep what their calls have made, so the process has one of each.
OPERATIONS: tuple[Operation[Any], ...] = (
    *PASSES,
    Product(),
    AttentionForward(),
    AttentionBackward(),
    MaxPool2d(),
    MaxPool2dBackward(),
    AvgPool2d(),
    AvgPool2dBackward(),
    Conv3d(),
    Conv3dInputGradient(),
    Conv3dWeightGradient(),
    LayerNorm(),
    LayerNormBackward(),
    GroupNormBackward(),
    Softmax(),
    Gelu(),
    GeluBackward(),
    Silu(),
    SiluBackward(),
    Bernoulli(),
    Rotary(),
    FrozenNorm(),
    FrozenNormBackward(),
    FocalLoss(),
)


def operation(name: str) -> Operation[Any] | None:
    """Return the operation of this name; None if there is none."""
    for one in OPERATIONS:  # a generator takes twice the time
        if one.name == name:
            return one
    return None


def named(name: str, where: str) -> Operation[Any]:
    """Return the operation of this name. Raises InvalidArgument that begins with `where`."""
    found = operation(name)
    if found is None:
        names = [one.name for one in OPERATIONS]
        raise InvalidArgument(
            f"{where}: there is no operation {name!r}; {expected_one(name, names)}"
        )
    return found


def expected_one(name: object, names: Iterable[str]) -> str:
    """Return the end of a message: which names there are, the nearest one last."""
    known = list(dict.fromkeys(names))
    nearest = get_close_matches(str(name), known, 1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"expected one of {', '.join(map(repr, known))}{hint}"
