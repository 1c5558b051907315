"""Convolutions with batch norm, addition, activation and pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from bestof.torch.plan.algorithms.algorithm import PlacedLayer, Planes
from bestof.torch.plan.layers.activations import activation_of
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.layers.problem import problem_of
from bestof.torch.plan.memory.channel_part import part_of
from bestof.torch.plan.operations.channels import filler
from bestof.torch.plan.operations.checks import expect, is_alike, is_rows, val
from bestof.torch.plan.operations.fused_layer import FusedLayer
from bestof.torch.plan.operations.pooling import Pooling
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.convolution_step import ConvolutionStep
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import MULTIPLIED, argument, is_plain, only_user, pair, shape_of

aten = torch.ops.aten

# Other algorithms than `direct`, which read channels last, win where there are more.
_FEW_CHANNELS = 4


@dataclass(frozen=True, slots=True)
class Convolution(FusedLayer):
    """A convolution of values in channels last."""

    name: ClassVar[str] = "convolution"
    reads_rows: ClassVar[bool] = True
    yields_rows: ClassVar[bool] = True
    overwrites_last: ClassVar[bool] = True

    @classmethod
    def recognisers(cls) -> Mapping[Any, Callable[[Rewriter, Node], object]]:
        """Return the operators that may become convolutions."""
        return {
            aten.conv2d.default: _recognise_convolution,
            aten.conv2d.padding: _recognise_convolution,
            aten.convolution.default: _recognise_convolution,
        }

    def absorb(self, rewriter: Rewriter, node: Node) -> None:
        """Take the addition, the activation and the pooling that follow into the convolution.

        The fused node stands in the place of the last of these nodes.
        """
        user = only_user(node)
        if user is not None and user.target is aten.add.Tensor:
            other = user.args[1] if user.args[0] is node else user.args[0]
            if is_residual(node, other, user):
                node = rewriter.absorb(node, user, self, node.args[0], other)
        node = self.absorb_activation(rewriter, node)
        convolution, user = node.meta["operation"], only_user(node)
        if user is not None and convolution.may_be_pooled(node, user):
            pooled = Convolution(replace(convolution.layer, pooled=True))
            rewriter.absorb(node, user, pooled, *node.args)

    def may_be_pooled(self, node: Node, user: Node) -> bool:
        """Return whether a pooling that follows may be part of the step.

        The activation must not fall, and a kernel must be able to pool. 64 channels @224 and their
        pooling take 0.88 of the time in batches of 8: 103 MB are neither written nor read.
        """
        pooling = user.meta.get("operation")
        if not isinstance(pooling, Pooling) or not pooling.window.is_max_2x2 or len(node.args) > 1:
            return False
        if not activation_of(self.layer.activation).never_falls(self.layer.slope):
            return False
        native = problem_of(self.layer, "float32", shape_of(node.args[0]), False).native
        return any(one.pools for one in native.values())

    def reads_planes(self, node: Node) -> bool:
        """Return whether a kernel may read the input in channels first.

        So the input of a network needs no copy in channels last, unless another algorithm is
        faster with it. 3 channels @224: the copy takes 20 to 50 us.
        """
        x = node.args[0]
        if self.layer.pooled or is_rows(x):
            return False
        value = val(x)
        few = value.dim() == 4 and value.shape[1] <= _FEW_CHANNELS
        if not few or value.dtype is not torch.float32 or not value.is_contiguous():
            return False
        problem = problem_of(self.layer, "float32", tuple(value.shape), False, planes=True)
        return bool(problem.of_planes)

    def workspace(self, node: Node) -> tuple[int, ...] | None:
        """Return the shape of memory that some algorithms need.

        It is for the input in channels last, or for the results before they are pooled or copied
        into a part.
        """
        if self.reads_planes(node):
            return shape_of(node.args[0])
        waits = self.layer.pooled or part_of(node) is not None
        return tuple(self._product_shape(node)) if waits else None

    def writes_part(self, node: Node) -> bool:
        """Return whether the result may be a part.

        It may not if it is pooled, if a value is added, or if the input is one of a network, whose
        copy in channels last takes the workspace.
        """
        plain = not self.layer.pooled and len(node.args) == 1
        return plain and not self.reads_planes(node)

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step: a placed layer."""
        source, *residual = node.args
        aside, planes = placed.out, None
        if self.reads_planes(node):
            assert placed.workspace is not None
            x = placed.workspace
            planes = _planes(placed.finder(source), x)
        else:
            x = placed.tensor(source)
            aside = placed.out if placed.workspace is None else placed.workspace
        layer = PlacedLayer(
            self.layer,
            placed.layer_choice.problem,
            x,
            placed.out,
            placed.tensor(residual[0]) if residual else None,
            aside,
            planes=planes,
        )
        step = ConvolutionStep(layer, placed.layer_choice)
        return placed.step(str(step.problem), step.run, step)

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        self.check_layer(dim=4)
        self.check_types(node)
        expect(not self.layer.gated and not self.layer.linear and len(node.args) < 3, node.name)
        x, *others = node.args
        expect(is_rows(node) and all(map(is_rows, others)), node.name)
        expect(is_rows(x) or self.reads_planes(node), node.name)
        shape = self._product_shape(node)
        expect(len(node.args) == 1 or val(node.args[1]).shape == shape, node.name)
        if self.layer.pooled:
            expect(len(node.args) == 1, node.name)
            shape = F.max_pool2d(torch.empty(shape, device="meta"), 2).shape
        expect(shape == val(node).shape, node.name)

    def _product_shape(self, node: Node) -> torch.Size:
        weight = torch.empty(self.layer.weights.weight.shape, device="meta")
        x = torch.empty(shape_of(node.args[0]), device="meta")
        return self.layer.product(x, weight).shape


def _planes(find: Callable[[], Tensor | None], x: Tensor) -> Planes:
    """Return the input that `find` returns during a call, and its copy to x.

    If a step is timed between calls, `find` returns None, and any numbers will do.
    """
    any_numbers = x.permute(0, 2, 3, 1).view(x.shape)

    def found() -> Tensor:
        given = find()
        return any_numbers if given is None else given.contiguous()

    fill = filler(found, x)
    return Planes(found, lambda: None if find() is None else fill())


def _recognise_convolution(rewriter: Rewriter, node: Node) -> None:
    x = node.args[0]
    weight, bias_node = rewriter.constant(node.args[1]), argument(node, "bias")
    bias = rewriter.constant(bias_node)
    if weight is None or (bias is None) != (bias_node is None):
        return
    dtypes = {weight.dtype} & MULTIPLIED
    if not is_plain(x, 4, dtypes) or not is_plain(node, 4, dtypes):
        return
    if bias is not None and bias.dtype is not weight.dtype:
        return
    if node.target is aten.convolution.default:
        transposed, output_padding = node.args[6:8]
        if transposed or any(output_padding):  # type: ignore[arg-type]  # a list of numbers
            return
    padding = argument(node, "padding")
    if isinstance(padding, str):
        return
    groups = argument(node, "groups")
    norm, last, after = None, node, only_user(node)
    if after is not None and after.target is aten.batch_norm.default and after.args[0] is node:
        norm = rewriter.norm(after)
        last = after if norm is not None else node
    layer = Layer(
        rewriter.frozen(weight, bias, norm, groups),
        pair(argument(node, "stride")),
        pair(padding),
        pair(argument(node, "dilation")),
        groups,
    )
    rewriter.replace(last, Convolution(layer), x)


def is_residual(node: Node, other: Any, addition: Node) -> bool:
    """Return whether an addition adds another value like a node's, so that its step can add it."""
    if other is node or addition.kwargs.get("alpha", 1) != 1:
        return False
    if not is_plain(other, 4, MULTIPLIED) or not is_plain(addition, 4, MULTIPLIED):
        return False
    return is_alike(node, other) and is_alike(node, addition)
