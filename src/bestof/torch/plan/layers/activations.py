"""The activations that a fused convolution or linear layer can apply to its results.

A row is all that a plan knows of an activation. To add one, let the native kernels compute it and
add a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from bestof.torch.plan.trace.graph import argument

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Activation:
    """One activation.

    name: as native kernels call it.
    slope_of: returns the slope below zero (0.0 if the activation has none) of a node that computes
    the activation, and None for other nodes.
    apply: computes it in place by PyTorch, given the slope.
    onednn: oneDNN's name of the activation, scalars and variant, given the slope.
    never_falls: whether a larger argument never gives a smaller result, given the slope. Then the
    maximum of some results is the result of the maximum.
    steepest: the largest derivative.
    """

    name: str
    slope_of: Callable[[Node], float | None]
    apply: Callable[[Tensor, float], Tensor]
    onednn: Callable[[float], tuple[str, list[float], str]]
    never_falls: Callable[[float], bool]
    steepest: float = 1.0


def _computed_by(*targets: Any) -> Callable[[Node], float | None]:
    return lambda node: 0.0 if node.target in targets else None


def _clamped(low: float, high: float | None, *targets: Any) -> Callable[[Node], float | None]:
    def slope_of(node: Node) -> float | None:
        if node.target in targets:
            return 0.0
        names = _BOUNDS.get(node.target)
        found = names and tuple(argument(node, name) for name in names)
        return 0.0 if found == (low, high) else None

    return slope_of


_BOUNDS: dict[Any, tuple[str, str]] = {
    aten.hardtanh.default: ("min_val", "max_val"),
    aten.clamp.default: ("min", "max"),
}


def _slope_of_leaky_relu(node: Node) -> float | None:
    if node.target is not aten.leaky_relu.default:
        return None
    return float(argument(node, "negative_slope"))


def _always(_: float) -> bool:
    return True


def _never(_: float) -> bool:
    return False


def _gelu(name: str, variant: str) -> Activation:
    def slope_of(node: Node) -> float | None:
        is_gelu = node.target is aten.gelu.default
        return 0.0 if is_gelu and argument(node, "approximate") == variant else None

    return Activation(
        name,
        slope_of,
        lambda y, _: aten.gelu_(y, approximate=variant),
        lambda _: ("gelu", [], variant),
        _never,
        steepest=1.2,
    )


ACTIVATIONS = (
    Activation(
        "relu",
        _clamped(0, None, aten.relu.default),
        lambda y, _: torch.relu_(y),
        lambda _: ("relu", [], ""),
        _always,
    ),
    Activation(
        "relu6",
        _clamped(0, 6, aten.relu6.default),
        lambda y, _: F.hardtanh_(y, 0.0, 6.0),
        lambda _: ("hardtanh", [0.0, 6.0], ""),
        _always,
    ),
    Activation(
        "silu",
        _computed_by(aten.silu.default),
        lambda y, _: F.silu(y, inplace=True),
        lambda _: ("swish", [], ""),
        _never,
        steepest=1.1,
    ),
    Activation(
        "hard_swish",
        _computed_by(aten.hardswish.default),
        lambda y, _: F.hardswish(y, inplace=True),
        lambda _: ("hardswish", [], ""),
        _never,
        steepest=1.5,
    ),
    Activation(
        "leaky_relu",
        _slope_of_leaky_relu,
        F.leaky_relu_,
        lambda slope: ("leaky_relu", [slope], ""),
        lambda slope: slope >= 0,
    ),
    _gelu("gelu", "none"),
    _gelu("gelu_tanh", "tanh"),
)
_ROWS = {row.name: row for row in ACTIVATIONS}
NO_ACTIVATION = Activation("", lambda _: None, lambda y, _: y, lambda _: ("none", [], ""), _always)
STEEPEST = max(row.steepest for row in ACTIVATIONS)


def activation_of(name: str) -> Activation:
    """Return the row of a name; "" has one that changes nothing. ValueError for unknown names."""
    if name and name not in _ROWS:
        raise ValueError(f"activation {name!r} is unknown; expected one of {', '.join(_ROWS)}")
    return _ROWS.get(name, NO_ACTIVATION)


def recognise_activation(node: Node) -> tuple[str, float] | None:
    """Return (name, slope) of the activation that a node computes; None for other nodes."""
    for row in ACTIVATIONS:
        slope = row.slope_of(node)
        if slope is not None:
            return row.name, slope
    return None
