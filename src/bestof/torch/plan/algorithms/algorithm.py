"""What an algorithm for fused layers is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bestof.errors import TorchError
from bestof.torch.ops.bound import Reach
from bestof.torch.plan.layers.frozen_weights import Packed
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.layers.pixels import have_pitch
from bestof.torch.plan.layers.problem import FusedProblem

Runner = Callable[[], object]


class Planes(NamedTuple):
    """An input of a convolution that lies in channels first, where a call has it.

    find: returns it. turn: copies it into the memory of the layer's input, in channels last.
    """

    find: Callable[[], Tensor]
    turn: Callable[[], None]


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """A layer at its place in memory, which stays where it is between calls.

    x, out, residual: (N, C, H, W) in channels last; (rows, features) if the layer is linear.
    There x may also be a function that finds the input at each call. aside: where results may lie
    before they are pooled, or copied into a part of wider pixels; else the same as `out`. gate: of
    a gated layer, apart from `out`. planes: the input of a convolution that is copied to x for
    algorithms that do not read planes.
    """

    layer: Layer
    problem: FusedProblem
    x: Tensor | Callable[[], Tensor]
    out: Tensor
    residual: Tensor | None
    aside: Tensor
    gate: Tensor | None = None
    planes: Planes | None = None

    @property
    def images(self) -> Tensor:
        """x, which is known in advance unless the layer is linear."""
        if not isinstance(self.x, Tensor):
            raise TorchError(
                "optimize: the input of a convolution has no fixed place; please report this"
            )
        return self.x

    def check(self) -> None:
        """Raise TorchError if the size or the place of an operand is not what kernels take.

        Kernels are given addresses. The check runs once, when a layer is bound to memory.
        """
        one, layer = self.problem.convolution, self.layer
        (n, c, h, w), (outer, inner, *_) = one.input_shape, one.weight_shape
        given: tuple[int, ...] = (w, c)
        made: tuple[int, ...] = (w, outer)
        if not layer.linear:  # of the geometry of the problem, as is checked below
            given, made = (n, c, h, w), (n, outer, *layer.extents(h, w))
        pooled = (*made[:2], *(size // 2 for size in made[2:])) if layer.pooled else made
        bias = layer.weights.float_bias
        right = (
            layer.geometry == (one.stride, one.padding, one.dilation, one.groups)
            and layer.weights.weight.shape == one.weight_shape[: layer.weights.weight.dim()]
            and c == inner * one.groups
            and (bias is None or (bias.shape == (outer,) and bias.is_contiguous()))
            and (layer.gated or self.gate is None)
            and (not isinstance(self.x, Tensor) or self._takes(self.x, given))
            and self._takes(self.out, pooled, self.problem.pitch)
            and self._takes(self.aside, made)
            and all(one is None or self._takes(one, made) for one in (self.residual, self.gate))
        )
        if not right:
            raise TorchError(
                f"optimize: the operands of a layer do not fit it ({self.problem}); if the plan "
                "was loaded, its file was changed: optimise the model again"
            )

    def _takes(self, value: Tensor, shape: tuple[int, ...], pitch: int = 0) -> bool:
        """Return whether a value has a shape and the layer's type, and its pixels lie as told."""
        if value.shape != shape or value.dtype is not self.layer.weights.weight.dtype:
            return False
        if pitch:
            return value.dim() == 4 and have_pitch(value, pitch)
        rows = value if value.dim() == 2 else value.permute(0, 2, 3, 1)
        return rows.is_contiguous()


@dataclass(frozen=True, slots=True)
class Bound:
    """An algorithm bound to a placed layer: what runs it, and the packed weights that it reads."""

    run: Runner
    packed: Packed | None = None


def checked_input(given: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the input of a layer that PyTorch has computed: kernels read it by its address.

    TorchError if the input is not as planned.
    """
    if given.dtype is not dtype or given.shape != shape:
        raise TorchError(
            f"optimize: a layer was planned for {str(dtype).removeprefix('torch.')} "
            f"{shape}; it got {given.dtype} {tuple(given.shape)}: an operator before it returned "
            "another type than when it was traced"
        )
    return given


class Algorithm(ABC):
    """One way to compute fused layers, a row of the table.

    name: for reports, the store and files of plans.
    trusted: whether this is PyTorch's own kernel, against which the others are verified.
    rounds: the operands that the algorithm rounds to bfloat16.
    reach: how far one element could reach. Unless the reach is "own", a bound algorithm looks at
        its input first. If an element stands out, the algorithm returns False and writes nothing.
    """

    name: str
    trusted: bool = False
    rounds: Literal["nothing", "weights", "both"] = "nothing"
    reach: Reach = "own"

    @abstractmethod
    def supports(self, problem: FusedProblem) -> bool:
        """Return whether the algorithm takes part in the race for a problem."""

    @abstractmethod
    def can_run(self, problem: FusedProblem) -> bool:
        """Return whether the algorithm, if ordered, can compute a problem within its accuracy."""

    @abstractmethod
    def bind(self, placed: PlacedLayer) -> Bound:
        """Pack the weights, and bind to memory.

        The caller adds the pooling, the gate, or the copy into a part that the algorithm omits.
        """

    @abstractmethod
    def error(self, problem: FusedProblem) -> float:
        """Return the promised rms error, relative to the rms of the sums."""

    @abstractmethod
    def weight_bytes(self, placed: PlacedLayer) -> int:
        """Return the bytes of the weights that the algorithm keeps or reads."""

    def pools(self, problem: FusedProblem) -> bool:  # noqa: ARG002  # for those that pool
        """Return whether the algorithm pools its results, if the problem is pooled."""
        return False

    def pitches(self, problem: FusedProblem) -> bool:  # noqa: ARG002  # for those that do
        """Return whether the algorithm writes a part of wider pixels, if the result is a part."""
        return False

    def writes_to(self, placed: PlacedLayer) -> Tensor:
        """Return the memory that the bound algorithm writes to."""
        own = self.pools(placed.problem) or self.pitches(placed.problem)
        return placed.out if own else placed.aside

    def gates(self, problem: FusedProblem) -> bool:  # noqa: ARG002  # for those that do
        """Return whether the algorithm multiplies by the gate, if the problem is gated."""
        return False

    def reads_planes(self, problem: FusedProblem) -> bool:  # noqa: ARG002  # for those that do
        """Return whether the algorithm reads an input in channels first, if the problem has one."""
        return False

    def unpacked(self, problem: FusedProblem) -> Algorithm | None:  # noqa: ARG002  # some pack
        """Return the same algorithm on the model's own weights, if that takes less memory."""
        return None
