"""An inverted residual, as a value and as a problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bestof.accuracy import Accuracy, allows
from bestof.kernels.inverted_residual import has_rows_of_bfloat16
from bestof.torch.ops.dtypes import is_rounded
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.layers.problem import FusedProblem, problem_of

Shape = tuple[int, ...]

NAMES = PYTORCH, BY_LAYERS, BY_ROWS, BY_ROWS_BF16 = (
    "pytorch",
    "by layers",
    "by rows",
    "by rows bf16",
)
"""What runs a block: PyTorch's operators, its layers one after the other, or one kernel.

The kernel `by rows bf16` multiplies bfloat16 in the 1x1 convolutions.
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A depthwise convolution, with a 1x1 convolution before it, behind it, or both.

    The inverted residual of MobileNetV2 (Sandler et al., 2018) has both. Only the last layer may
    add a residual.
    """

    expansion: Layer | None
    depthwise: Layer
    projection: Layer | None

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, in the order in which they run."""
        return tuple(
            one for one in (self.expansion, self.depthwise, self.projection) if one is not None
        )

    def shapes(self, x: Shape) -> Iterator[Shape]:
        """Yield the shapes (N, C, H, W) of what the layers make of x."""
        for layer in self.layers:
            x = (x[0], len(layer.weights.weight), *layer.extents(*x[2:]))
            yield x

    def problem(self, x: Shape, accuracy: Accuracy, residual: bool) -> BlockProblem:
        """Return the problem of the block on an input of shape x."""
        given = [x, *self.shapes(x)]
        layers, last = self.layers, self.layers[-1]
        return BlockProblem(
            tuple(
                problem_of(layer, accuracy, shape, residual and layer is last)
                for layer, shape in zip(layers, given, strict=False)
            )
        )


class BlockProblem(NamedTuple):
    """The problem of a block: those of its layers."""

    layers: tuple[FusedProblem, ...]

    def can_run(self, name: str) -> bool:
        """Return whether a name is one of the alternatives that the accuracy allows."""
        if name == BY_ROWS_BF16:
            allowed = self.holds_bfloat16 or allows(self.layers[0].accuracy, "relaxed")
            return allowed and has_rows_of_bfloat16()
        return name in NAMES

    @property
    def holds_bfloat16(self) -> bool:
        """Whether values and weights are bfloat16, which loses nothing where it is multiplied."""
        return is_rounded(self.layers[0].convolution.dtype)

    def canonical(self) -> str:
        """Return the text that identifies the problem in the store."""
        return "block " + " > ".join(one.canonical() for one in self.layers)

    def __str__(self) -> str:
        first, *others = self.layers
        parts = [str(first), *(_behind(one) for one in others)]
        return " > ".join(parts)


def _behind(problem: FusedProblem) -> str:
    """Return a layer that reads what another makes, whose shape is known."""
    one = problem.convolution
    filters, _, height, width = one.weight_shape
    words = [f"k{filters}x{height}x{width}"]
    words += [f"s{one.stride[0]}"] if one.stride != (1, 1) else []
    words += ["residual"] if problem.residual else []
    words += [problem.activation] if problem.activation else []
    return " ".join(words)
