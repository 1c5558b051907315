"""A depthwise convolution and the 1x1 convolutions around it, as one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from torch import Tensor
from torch.fx import Node

from bestof.accuracy import Accuracy
from bestof.torch.plan.layers.block import Block, Shape
from bestof.torch.plan.layers.frozen_weights import FrozenWeights
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.operations.checks import expect, is_alike, is_rows, operation_of, val
from bestof.torch.plan.operations.convolution import Convolution
from bestof.torch.plan.operations.operation import Operation, decoded_fields, encoded_fields
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.block_step import BlockChoice, BlockStep
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import only_user, shape_of

# Rows of results are computed a tile of 14 pixels at a time: 7x7 pixels took twice as long as layer
# by layer.
_LEAST_WIDTH = 14
# Images that are smaller stay in caches between layers.
_LEAST_FLOATS = 2**15


@dataclass(frozen=True, slots=True)
class InvertedResidual(Operation):
    """A block of layers. Its node's arguments: x, and the residual."""

    name: ClassVar[str] = "inverted residual"
    reads_rows: ClassVar[bool] = True
    yields_rows: ClassVar[bool] = True

    block: Block

    def choice(self, node: Node, accuracy: Accuracy) -> BlockChoice:
        """Return the choice of what runs the block."""
        problem = self.block.problem(shape_of(node.args[0]), accuracy, len(node.args) > 1)
        return BlockChoice(problem, [layer.weights for layer in self.block.layers])

    def workspace(self, node: Node) -> tuple[int, ...]:
        """Return memory for what the layers make one after the other: (1, 1, 1, floats)."""
        return 1, 1, 1, sum(map(_floats, self._between(node)))

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step: a block at its place in memory."""
        assert isinstance(placed.choice, BlockChoice)
        assert placed.workspace is not None
        x, *residual = map(placed.tensor, node.args)
        between: list[Tensor] = []
        memory = placed.workspace.view(-1)
        for shape in self._between(node):
            n, c, h, w = shape
            between.append(memory[: prod(shape)].view(n, h, w, c).permute(0, 3, 1, 2))
            memory = memory[_floats(shape) :]
        step = BlockStep(
            *(self.block, placed.choice, x, placed.out),
            *(residual[0] if residual else None, between),
        )
        return placed.step(str(step.problem), step.run, step)

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        block = self.block
        for layer in block.layers:
            Convolution(layer).check_layer(dim=4)
            plain = not layer.linear and not layer.gated and not layer.pooled
            expect(plain and layer.weights.weight.dtype is val(node).dtype, node.name)
        ends = (block.expansion, block.projection)
        expect(all(one is None or is_pointwise(one) for one in ends), node.name)
        expect(is_depthwise(block.depthwise) and len(block.layers) > 1, node.name)
        expect(is_rows(node) and all(map(is_rows, node.args)), node.name)
        expect(len(node.args) == 1 or block.projection is not None, node.name)
        expect(len(node.args) < 3 and all(is_alike(node, one) for one in node.args[1:]), node.name)
        channels = val(node.args[0]).shape[1]
        for layer in block.layers:
            expect(layer.weights.weight.shape[1] * layer.groups == channels, node.name)
            channels = layer.weights.weight.shape[0]
        *_, made = block.shapes(tuple(val(node.args[0]).shape))
        expect(made == tuple(val(node).shape) and min(made) > 0, node.name)
        expect(all(val(one).dtype is val(node).dtype for one in node.args), node.name)

    def encode(self, number: Callable[[FrozenWeights], int]) -> dict[str, Any]:
        block = self.block
        layers = {
            name: None if one is None else encoded_fields(one, number)
            for name, one in (
                ("expansion", block.expansion),
                ("depthwise", block.depthwise),
                ("projection", block.projection),
            )
        }
        return {"name": self.name, **layers}

    @classmethod
    def decode(cls, content: dict[str, Any], weights: list[FrozenWeights]) -> InvertedResidual:
        def layer(name: str) -> Any:
            found = content[name]
            return None if found is None else Layer(**decoded_fields(found, weights))

        return cls(Block(layer("expansion"), layer("depthwise"), layer("projection")))

    def _between(self, node: Node) -> list[Shape]:
        return list(self.block.shapes(shape_of(node.args[0])))[:-1]


def join_inverted_residuals(rewriter: Rewriter) -> None:
    """Let one step compute each depthwise convolution with the 1x1 convolutions around it."""
    for node in list(rewriter.module.graph.nodes):
        if not node._erased and (layer := _layer(node)) is not None and is_depthwise(layer):
            _join(rewriter, node, layer)


def is_pointwise(layer: Layer) -> bool:
    """Return whether a layer is a product of pixels."""
    kernel = layer.weights.weight.shape[2:]
    return kernel == (1, 1) and layer.geometry == Layer(layer.weights).geometry


def is_depthwise(layer: Layer) -> bool:
    """Return whether each channel has a filter of its own."""
    filters, channels, height, width = layer.weights.weight.shape
    return layer.groups == filters and channels == 1 and (height, width) != (1, 1)


def _floats(shape: Shape) -> int:
    """Return the floats of a value, in whole lines of caches."""
    return -(-prod(shape) // 16) * 16


def _layer(node: Any) -> Layer | None:
    """Return the layer that a node computes, if a block may have it."""
    operation = operation_of(node)
    if not isinstance(operation, Convolution) or operation.layer.pooled:
        return None
    return operation.layer


def _pointwise(node: Any) -> Layer | None:
    """Return the layer that a node computes, if that is a product of pixels."""
    layer = _layer(node)
    return layer if layer is not None and is_pointwise(layer) else None


def _join(rewriter: Rewriter, node: Node, depthwise: Layer) -> None:
    """Join a depthwise convolution with its neighbours, if there are any and that may pay."""
    if len(node.args) > 1 or shape_of(node)[3] < _LEAST_WIDTH:
        return
    first = last = node
    expansion = projection = None
    before, behind = node.args[0], only_user(node)
    found = _pointwise(before)
    if isinstance(before, Node) and len(before.args) == 1 and only_user(before) is node:
        first, expansion = (node, None) if found is None else (before, found)
    found = _pointwise(behind)
    if behind is not None and found is not None and behind.args[0] is node:
        last, projection = behind, found
    if first is last or prod(shape_of(node.args[0])) < _LEAST_FLOATS:
        return
    block = InvertedResidual(Block(expansion, depthwise, projection))
    name = first.meta["name"]
    made = rewriter.replace(last, block, first.args[0], *last.args[1:])
    made.meta["name"] = name
    for one in dict.fromkeys((last, node, first)):
        rewriter.module.graph.erase_node(one)
