"""Poolings of values in channels last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch.fx import Node

from bestof.torch.plan.layers.frozen_weights import FrozenWeights
from bestof.torch.plan.layers.window import Window, pooling_runner
from bestof.torch.plan.operations.checks import expect, expect_pair, is_rows, val
from bestof.torch.plan.operations.operation import Operation, decoded_fields, encoded_fields
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import MULTIPLIED, argument, is_plain, pair, shape_of

aten = torch.ops.aten

# The largest window of an average. The kernel sums it in one chain: at 512 x 512, equal numbers
# give an average that is off by 0.25 %, where PyTorch's mean has no error.
_MOST_PIXELS = 64 * 64


@dataclass(frozen=True, slots=True)
class Pooling(Operation):
    """The maximum or average of every window."""

    name: ClassVar[str] = "pooling"
    reads_rows: ClassVar[bool] = True
    yields_rows: ClassVar[bool] = True

    window: Window

    @classmethod
    def recognisers(cls) -> Mapping[Any, Callable[[Rewriter, Node], object]]:
        return {
            aten.max_pool2d.default: _recognise_pooling,
            aten.avg_pool2d.default: _recognise_pooling,
            aten.adaptive_avg_pool2d.default: _recognise_adaptive,
            aten._adaptive_avg_pool2d.default: _recognise_adaptive,
            aten.mean.dim: _recognise_mean,
        }

    def writes_part(self, node: Node) -> bool:  # noqa: ARG002  # any
        return True

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        x = placed.tensor(node.args[0])
        return placed.step(str(self.window), pooling_runner(self.window, x, placed.out))

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        one, x = self.window, val(node.args[0])
        expect(one.kind in ("max", "average") and isinstance(one.count_padding, bool), node.name)
        expect(isinstance(one.ceil, bool) and not (one.ceil and one.kind != "max"), node.name)
        expect(len(node.args) == 1 and is_rows(node.args[0]), node.name)
        for least, given in ((1, one.kernel), (1, one.stride), (0, one.padding)):
            expect_pair(given, least, node.name, most=2**24)  # a mean takes the whole image
        right = F.avg_pool2d(x, one.kernel, one.stride, one.padding, one.ceil)
        expect(is_rows(node) and is_rows(node.args[0]), node.name)
        expect(right.shape == val(node).shape and x.dtype is val(node).dtype, node.name)

    def encode(self, number: Callable[[FrozenWeights], int]) -> dict[str, Any]:
        return {"name": self.name, **encoded_fields(self.window, number)}

    @classmethod
    def decode(cls, content: dict[str, Any], weights: list[FrozenWeights]) -> Pooling:
        return cls(Window(**decoded_fields(content, weights)))


def _is_pooled(node: Node) -> bool:
    """Return whether a value and its pooling have four axes and one type that kernels pool."""
    return is_plain(node, 4, MULTIPLIED) and is_plain(node.args[0], 4, {val(node).dtype})


def _recognise_pooling(rewriter: Rewriter, node: Node) -> None:
    if not _is_pooled(node):
        return
    x = node.args[0]
    kernel = pair(node.args[1])
    stride = pair(argument(node, "stride") or kernel)
    padding = pair(argument(node, "padding"))
    if node.target is aten.max_pool2d.default:
        fits, kind, counted = pair(argument(node, "dilation")) == (1, 1), "max", True
    else:
        fits, kind = argument(node, "divisor_override") is None, "average"
        counted = bool(argument(node, "count_include_pad"))
    extents = list(zip(shape_of(x)[2:], padding, kernel, stride, strict=True))
    floor = tuple((n + 2 * p - k) // s + 1 for n, p, k, s in extents)
    ceil = floor != shape_of(node)[2:]  # rounded up, by ceil_mode
    whole = all(n + 2 * p >= k for n, p, k, _ in extents)
    if fits and whole and not (ceil and kind == "average"):
        rewriter.replace(node, Pooling(Window(kind, kernel, stride, padding, counted, ceil)), x)


def _recognise_adaptive(rewriter: Rewriter, node: Node) -> None:
    if not _is_pooled(node):
        return
    given, wanted = shape_of(node.args[0])[2:], shape_of(node)[2:]
    if given[0] % wanted[0] == 0 and given[1] % wanted[1] == 0:
        kernel = given[0] // wanted[0], given[1] // wanted[1]
        if prod(kernel) > _MOST_PIXELS:
            return
        window = Window("average", kernel, kernel, (0, 0), True)
        rewriter.replace(node, Pooling(window), node.args[0])


def _recognise_mean(rewriter: Rewriter, node: Node) -> None:
    """Replace a mean over all pixels by an average pooling, reshaped if the pixel is dropped."""
    x, dims = node.args[0], node.args[1]
    if not isinstance(dims, list) or not is_plain(x, 4, MULTIPLIED):
        return
    if sorted(d % 4 for d in dims) != [2, 3] or argument(node, "dtype") is not None:
        return
    kernel = (shape_of(x)[2], shape_of(x)[3])
    if prod(kernel) > _MOST_PIXELS:
        return
    operation = Pooling(Window("average", kernel, kernel, (0, 0), True))
    if argument(node, "keepdim"):
        rewriter.replace(node, operation, x)
        return
    val_ = node.meta["val"]
    pooled = rewriter.insert(node, operation, x, val=val_[:, :, None, None])
    with node.graph.inserting_after(pooled):
        flat = node.graph.call_function(aten.flatten.using_ints, (pooled, 1))
    flat.meta = {"val": val_}
    node.replace_all_uses_with(flat)
