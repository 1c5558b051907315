"""The native kernels that compute a whole block, a row of results at a time."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from torch import Tensor

from bestof.kernels import InvertedResidualPlan
from bestof.kernels.inverted_residual import DEPTHWISE, POINTWISE
from bestof.torch.ops.dtypes import name_of
from bestof.torch.plan.algorithms.algorithm import Runner
from bestof.torch.plan.layers.block import BY_ROWS, BY_ROWS_BF16, Block
from bestof.torch.plan.layers.frozen_weights import Packed
from bestof.torch.plan.layers.layer import Layer

PRODUCTS = {BY_ROWS: "float32", BY_ROWS_BF16: "bfloat16"}
"""What the 1x1 convolutions of each kernel multiply."""


def offered_name(kernel: str) -> str:
    """Return the name that configurations have for a kernel."""
    return f"native {kernel}"


class BoundByRows(NamedTuple):
    """The kernel bound to memory: the function to run, and the packed weights of each layer."""

    run: Runner
    packed: tuple[Packed, ...]


def bind_by_rows(
    kernel: str, block: Block, x: Tensor, out: Tensor, residual: Tensor | None
) -> BoundByRows:
    """Pack the weights of a block, and bind a kernel. Tensors: (N, C, H, W) in channels last."""
    n, c, h, w = x.shape
    first, middle, last = block.expansion, block.depthwise, block.projection
    plan = InvertedResidualPlan(
        (n, h, w, c),
        None if first is None else _shape(first),
        _shape(middle),
        None if last is None else _shape(last),
        stride=middle.stride,
        padding=middle.padding,
        dilation=middle.dilation,
        activations=(_activation(first), _activation(middle), _activation(last)),
        products=PRODUCTS[kernel],
        dtype=name_of(x.dtype),
    )
    pointwise = POINTWISE[PRODUCTS[kernel]]
    expands = None if first is None else first.weights.packed_kept(pointwise)
    filters = middle.weights.packed_kept(DEPTHWISE)
    projects = None if last is None else last.weights.packed_kept(pointwise)
    run = partial(
        plan.run,
        x.data_ptr(),
        (
            None if expands is None else expands.layout,
            filters.layout,
            None if projects is None else projects.layout,
        ),
        (_bias(first), _bias(middle), _bias(last)),
        out.data_ptr(),
        0 if residual is None else residual.data_ptr(),
    )
    packed = (expands, filters, projects)
    return BoundByRows(run, tuple(one for one in packed if one is not None))


def _shape(layer: Layer) -> tuple[int, ...]:
    filters, channels, height, width = layer.weights.weight.shape
    return filters, height, width, channels


def _activation(layer: Layer | None) -> tuple[str, float] | None:
    return (layer.activation, layer.slope) if layer is not None and layer.activation else None


def _bias(layer: Layer | None) -> int:
    bias = None if layer is None else layer.weights.float_bias
    return 0 if bias is None else bias.data_ptr()
