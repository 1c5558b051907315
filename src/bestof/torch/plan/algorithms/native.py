"""The native kernels of `bestof.kernels`, each as an algorithm for fused layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bestof.accuracy import allows
from bestof.kernels import Algorithm as Row
from bestof.kernels import Conv2dPlan, PackedWeights, algorithms
from bestof.torch.ops.convolution.passes import FORWARD
from bestof.torch.ops.dtypes import is_rounded
from bestof.torch.plan.algorithms.algorithm import (
    Algorithm,
    Bound,
    PlacedLayer,
    Runner,
    checked_input,
)
from bestof.torch.plan.algorithms.native_runner import native_runner
from bestof.torch.plan.layers.frozen_weights import Packed
from bestof.torch.plan.layers.problem import FusedProblem

UNPACKED = " unpacked"


class Native(Algorithm):
    """A native kernel, as its row in the kernels' table describes it.

    `packs` is False for the variant that reads the model's own weights and transforms them at each
    call. This variant takes less memory and more time. No race tries it. Plans with a limit of
    memory use it.
    """

    def __init__(self, kernel: str, packs: bool = True) -> None:
        self.kernel, self._packs = kernel, packs
        self.name = kernel if packs else f"{kernel}{UNPACKED}"
        self.rounds = algorithms()[kernel].rounds
        self.reach = algorithms()[kernel].reach

    def supports(self, problem: FusedProblem) -> bool:
        """Return whether the kernel applies, and may be the fastest."""
        if not self._packs or not self.can_run(problem):
            return False
        row = algorithms()[self.kernel]
        if row.emulated and not is_rounded(problem.convolution.dtype):
            return False  # the results of the float32 kernels, but slower
        if problem.linear:
            return row.linear and (row.shapes == "few rows" or not problem.only_streams)
        if row.rounds == "both" and has_kernel_for(problem, "depthwise"):
            return False
        return not _multiplies_like_others(row) or not _winograd_wins(problem)

    def can_run(self, problem: FusedProblem) -> bool:
        """Return whether the kernel applies to the shapes, and the accuracy allows it."""
        row = algorithms()[self.kernel]
        if self.kernel not in problem.native:
            return False
        # Tensors of bfloat16 lose nothing where operands are rounded to it.
        return is_rounded(problem.convolution.dtype) or allows(problem.accuracy, row.accuracy)

    def bind(self, placed: PlacedLayer) -> Bound:
        """Pack the weights, and bind the kernel to the addresses of a placed layer."""
        layer, problem = placed.layer, placed.problem
        (n, c, h, w), (k, i, r, s) = (
            problem.convolution.input_shape,
            problem.convolution.weight_shape,
        )
        planes = self.reads_planes(problem)
        plan = Conv2dPlan(
            (n, c, h, w) if planes else (n, h, w, c),
            (k, r, s, i),
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=layer.groups,
            algorithm=self.kernel,
            activation=(layer.activation, layer.slope) if layer.activation else None,
            pool=self.pools(problem),
            dtype=problem.convolution.dtype,
            x_layout="channels_first" if planes else "channels_last",
            looks=True,
            pitch=problem.pitch if self.pitches(problem) else None,
        )
        packed = self._weights(placed)
        bias, residual = layer.weights.float_bias, placed.residual
        addresses = (
            self.writes_to(placed).data_ptr(),
            0 if bias is None else bias.data_ptr(),
            0 if residual is None else residual.data_ptr(),
        )
        x = placed.planes.find if planes and placed.planes is not None else placed.x
        return Bound(_runner(plan, x, _input_shape(problem), packed, addresses), packed)

    def error(self, problem: FusedProblem) -> float:
        return float(problem.native[self.kernel].error_bound)

    def weight_bytes(self, placed: PlacedLayer) -> int:
        """Return the bytes of the packed weights, or else of the model's."""
        if self._keeps_weights(placed.problem):
            return self._weights(placed).nbytes
        return placed.layer.weights.weight.nbytes

    def pools(self, problem: FusedProblem) -> bool:
        row = problem.native.get(self.kernel)
        return problem.pooled and row is not None and bool(row.pools)

    def reads_planes(self, problem: FusedProblem) -> bool:
        """Return whether the kernel reads an input in channels first, if the problem has one."""
        return self.kernel in problem.of_planes

    def pitches(self, problem: FusedProblem) -> bool:
        row = problem.native.get(self.kernel)
        return problem.pitch > 0 and row is not None and bool(row.pitches)

    def unpacked(self, problem: FusedProblem) -> Native | None:
        """Return the variant that transforms the model's own weights at each call."""
        if problem.linear or not self._keeps_weights(problem):
            return None
        return Native(self.kernel, packs=False)

    def _keeps_weights(self, problem: FusedProblem) -> bool:
        return self._packs and bool(problem.native[self.kernel].packs)

    def _weights(self, placed: PlacedLayer) -> Packed:
        weights = placed.layer.weights
        if not self._keeps_weights(placed.problem):
            return weights.rows_kept()
        return weights.packed_kept(self.kernel)


def _input_shape(problem: FusedProblem) -> tuple[int, ...]:
    """Return the shape of the input as PyTorch has it."""
    shape = problem.convolution.input_shape
    return (shape[3], shape[1]) if problem.linear else shape


def _runner(
    plan: Conv2dPlan,
    x: Tensor | Callable[[], Tensor],
    shape: tuple[int, ...],
    packed: Packed,
    addresses: tuple[int, int, int],
) -> Runner:
    layout = packed.layout
    # The model's memory may move (model.share_memory()): its address is asked for at each call.
    find_layout = layout.data_ptr if isinstance(layout, Tensor) else lambda: layout
    if isinstance(x, Tensor):
        at = x.data_ptr()
        if isinstance(layout, PackedWeights):
            return plan.bind(at, layout, *addresses)
        return native_runner(lambda: plan.run(at, find_layout(), *addresses))
    find = x

    @native_runner
    def run() -> None:
        given = checked_input(find(), torch.float32, shape)  # kept until the kernel is done
        plan.run(given.data_ptr(), find_layout(), *addresses)

    return run


def has_kernel_for(problem: FusedProblem, shapes: str) -> bool:
    """Return whether a kernel that is written for these shapes computes a problem."""
    return any(algorithms()[name].shapes == shapes for name in problem.native)


def _multiplies_like_others(row: Row) -> bool:
    """Return whether a kernel computes every product, as the kernel for linear layers does.

    The packing or blocking of such a kernel gains a few percent where no other kernel saves
    products. Parts of bfloat16 are multiplied faster.
    """
    return row.shapes == "any" and not row.linear and not row.parts


def _winograd_wins(problem: FusedProblem) -> bool:
    """Return whether Winograd wins, so that one kernel that computes every product is enough."""
    return FORWARD.winograd_wins(
        problem.convolution._replace(accuracy=problem.accuracy, frozen=True)
    )
