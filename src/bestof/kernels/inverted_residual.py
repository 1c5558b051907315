"""A 1x1 convolution, a depthwise one and another 1x1 convolution as one kernel, in NHWC."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels._native import PackedWeights
from bestof.kernels.pair import Pair, shape_tuple
from bestof.kernels.problem import Activation, Padding, activation_of, problem_of

# The algorithms for which the weights of the depthwise layer and of the others are packed; the
# latter by what the 1x1 convolutions multiply.
DEPTHWISE = "depthwise"
POINTWISE = {"float32": "convgemm", "bfloat16": "convgemm_bf16"}


def has_rows_of_bfloat16() -> bool:
    """Return whether the instruction set in use has the kernel that multiplies bfloat16.

    Tile registers have none: they multiply the layers one after the other.
    """
    return _native.has_rows_of_pairs()


class InvertedResidualPlan:
    """An inverted residual (Sandler et al., 2018), computed row by row.

    The expanded image never lies in memory as a whole. The problem is checked once, at
    construction. `run` takes addresses, and does not check them.

    x_shape: (N, H, W, C). expansion, projection: the shapes (K, 1, 1, C) of the weights of the 1x1
    convolutions; None leaves a layer out. depthwise: the shape (C, R, S, 1) of the weights of the
    layer between; stride, padding and dilation are its own. activations: one for each of the three
    layers, in this order; those of layers that are left out are not read. products: what the 1x1
    convolutions multiply, "float32" or "bfloat16"; other operands are converted, and sums are
    float32. dtype: of x, y and the residual.
    Construction raises KernelError for a problem that cannot be computed.
    """

    __slots__ = ("_plan", "x_shape", "y_shape")

    def __init__(
        self,
        x_shape: Sequence[int],
        expansion: Sequence[int] | None,
        depthwise: Sequence[int],
        projection: Sequence[int] | None,
        *,
        stride: Pair = 1,
        padding: Padding = 0,
        dilation: Pair = 1,
        activations: tuple[Activation, Activation, Activation] = (None, None, None),
        products: str = "float32",
        dtype: str = "float32",
    ) -> None:
        if products not in POINTWISE:
            raise KernelError(f"products: expected float32 or bfloat16; got {products!r}")
        by = POINTWISE[products]
        self.x_shape = shape = shape_tuple(x_shape, "x_shape")
        first, middle, last = map(activation_of, activations)
        layers: list[_native.ResidualLayer | None] = [None, None]
        if expansion is not None:
            problem = problem_of(shape, shape_tuple(expansion, "expansion"), 1, 0, 1, 1, dtype)
            layers[0] = _native.pointwise_layer(problem, by, *first)
            shape = problem.y_shape
        filters = shape_tuple(depthwise, "depthwise")
        groups = shape[-1] if len(shape) == 4 else 1
        problem = problem_of(shape, filters, stride, padding, dilation, groups, dtype)
        between = _native.depthwise_layer(problem, *middle)
        shape = problem.y_shape
        if projection is not None:
            problem = problem_of(shape, shape_tuple(projection, "projection"), 1, 0, 1, 1, dtype)
            layers[1] = _native.pointwise_layer(problem, by, *last)
            shape = problem.y_shape
        self.y_shape = shape
        self._plan = _native.InvertedResidualPlan(layers[0], between, layers[1])

    def run(
        self,
        x: int,
        weights: tuple[PackedWeights | None, PackedWeights, PackedWeights | None],
        biases: tuple[int, int, int],
        out: int,
        residual: int = 0,
    ) -> None:
        """Run the layers on addresses; 0 leaves out a bias or the residual, which is added to y.

        weights: as `pack_weights` returns them for the algorithms `POINTWISE[products]`,
        `DEPTHWISE` and `POINTWISE[products]`; None for layers that are left out.
        """
        if not (x and out) and all((*self.x_shape, *self.y_shape)):  # empty arrays have no address
            raise KernelError(f"addresses: expected two that are not 0; got {x!r}, {out!r}")
        try:
            (first, middle, last), (of_first, of_middle, of_last) = weights, biases
            self._plan.run(x, first, of_first, middle, of_middle, last, of_last, residual, out)
        except KernelError:
            raise
        except (TypeError, ValueError, RuntimeError):
            raise KernelError(
                "addresses: expected integers from 0 on, and packed weights of each layer; "
                f"got {x!r}, {weights!r}, {biases!r}, {out!r}, {residual!r}"
            ) from None
