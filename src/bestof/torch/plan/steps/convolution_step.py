"""A fused layer of a plan that is bound to memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from bestof.kernels import ChannelPlan
from bestof.selection import Alternative, BestOf, Race, UnlessShared
from bestof.torch.backends.depends import DEPENDS
from bestof.torch.ops.convolution.neighbourhood import Neighbourhood
from bestof.torch.plan.algorithms.algorithm import Algorithm, Bound, PlacedLayer
from bestof.torch.plan.algorithms.native_runner import Guarded, is_native, native_runner
from bestof.torch.plan.algorithms.table import (
    PYTORCH,
    algorithm,
    applicable,
    left_out,
    may_run,
    table,
)
from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Packed
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.layers.problem import FusedProblem
from bestof.torch.plan.layers.window import MAX_2X2, pooling_runner
from bestof.torch.plan.steps.chosen_step import Choice, Runner
from bestof.torch.plan.steps.compared_step import ComparedStep
from bestof.torch.plan.steps.comparison import Comparison
from bestof.torch.plan.steps.layer_comparison import compare_layer
from bestof.torch.plan.steps.layer_reference import error_of
from bestof.torch.plan.steps.step_verifier import StepVerifier
from bestof.torch.rows.offer import asks

# All layers of a plan race at once, in the running plan. One round more is one call of the whole
# model for each alternative, while a user waits; near-ties are not worth that.
_POLICY = Race(max_trials=12)


class LayerChoice(Choice):
    """The algorithm of one layer.

    A limit of memory holds for all layers with the same weights, also for shapes that are planned
    later: otherwise each shape would keep the weights in a layout of its own.
    """

    problem: FusedProblem

    def __init__(self, problem: FusedProblem, weights: FrozenWeights) -> None:
        super().__init__(problem)
        self._weights = weights

    @property
    def algorithm(self) -> str | None:
        """The name of the algorithm; None while the choice is open."""
        only = self._weights.limited_to
        if self._algorithm is None and only is not None:
            self.is_ordered = True
            self._algorithm = only if self.can_run(only) else PYTORCH.name
        return self._algorithm

    def can_run(self, name: str) -> bool:
        """Return whether an algorithm of this name computes the problem at its accuracy."""
        try:
            return algorithm(name).can_run(self.problem)
        except KeyError:
            return False

    def settle(self, name: str) -> None:
        """Order an algorithm, in place of an earlier one too, for every number of threads."""
        super().settle(name)
        if self._weights.limited_to is not None:
            self._weights.limited_to = name

    def limit(self, name: str) -> None:
        """Take an algorithm, for all layers with the same weights."""
        self._weights.limited_to = name
        self.settle(name)


class ConvolutionStep(ComparedStep):
    """A placed layer, run by whichever algorithm is chosen."""

    pytorch: ClassVar[str] = PYTORCH.name

    choice: LayerChoice

    def __init__(self, placed: PlacedLayer, choice: LayerChoice) -> None:
        super().__init__(choice, placed.out, placed.residual)
        placed.check()
        self.placed = placed
        self._bound: dict[str, Bound] = {}
        self._taken: str | None = None
        self._run: Runner = self.select

    @property
    def layer(self) -> Layer:
        return self.placed.layer

    @property
    def problem(self) -> FusedProblem:
        """What the algorithm is chosen for."""
        return self.placed.problem

    @property
    def run(self) -> Runner:
        """The function that runs the layer."""
        return self._run

    @property
    def reads(self) -> tuple[tuple[FrozenWeights, tuple[Packed, ...]], ...]:
        """The weights of the layer, and the layouts of them that the step holds."""
        return ((self.layer.weights, self.packed),)

    @property
    def packed(self) -> tuple[Packed, ...]:
        """The weights in layouts of their own that it holds."""
        return tuple(one.packed for one in self._bound.values() if one.packed is not None)

    @property
    def flops(self) -> int:
        """The additions and multiplications of a direct convolution."""
        return self.problem.convolution.flops

    @property
    def promised_error(self) -> float:
        """The promised rms error, relative to the rms of the sums."""
        return error_of(self.problem, self.algorithm)

    @property
    def raced_bytes(self) -> int:
        """About the bytes of the weights that are packed for a race.

        Twice the weight for each algorithm: F(6) takes seven times as much, F(4) four times, most
        others as much.
        """
        return 2 * len(applicable(self.problem)) * self.layer.weights.weight.nbytes

    def prepare(self) -> None:
        """Pack the weights for all algorithms that race: packing is no part of a call's time."""
        for name in applicable(self.problem):
            # It fails again at its trial, where the selector disqualifies it and reports why.
            with suppress(Exception):
                self.runner(name)

    def trusts(self, name: str) -> bool:
        """Return whether an algorithm is PyTorch's own, or a library's that PyTorch calls."""
        return algorithm(name).trusted

    @property
    def is_comparable(self) -> bool:
        """Whether the chosen algorithm is not PyTorch's own, whose weights are still there."""
        return super().is_comparable and not self.layer.weights.is_released

    def compared(self, name: str | None, overwritten: Tensor | None) -> Comparison:
        """Compare the result of the last run with PyTorch's."""
        residual = self.placed.residual if overwritten is None else overwritten
        if self.placed.planes is not None:
            self.placed.planes.turn()
        return compare_layer(self.placed, name, residual)

    def runner(self, name: str) -> Runner:
        """Return the function that runs the layer by one algorithm.

        The first request packs the weights.
        """
        bound = self._bound.get(name)
        if bound is None:
            bound = self._bound[name] = self._bind(name)
        return bound.run

    def learn(self) -> bool:
        """Bind to the chosen algorithm if there is one; return whether there is."""
        if not super().learn():
            return False
        name = self.algorithm
        if name is not None and name != self._taken:
            self._run = self.runner(name)
            self._bound = {name: self._bound[name]}
            self._taken = name
        return True

    @property
    def selector(self) -> BestOf:
        """The selector of all such steps."""
        return selector()

    def _guarded(self, run: Runner, is_final: bool) -> Runner:
        """Return a function that lets PyTorch compute a call if an element of it stands out.

        is_final: whether nothing pools or copies what `run` writes.
        """
        by_pytorch: list[Runner] = []

        def otherwise() -> None:
            if not by_pytorch:
                # `run` has copied an input in channels first into channels last.
                other = self._bind(PYTORCH.name) if is_final else PYTORCH.bind(self.placed)
                by_pytorch.append(other.run)
            by_pytorch[0]()

        return Guarded(run, otherwise)

    def _bind(self, name: str) -> Bound:
        row, placed = algorithm(name), self.placed
        bound = row.bind(placed)
        if placed.planes is not None and not row.reads_planes(placed.problem):
            bound = Bound(_after(placed.planes.turn, bound.run), bound.packed)
        if row.reach != "own":
            assert placed.planes is None or not row.reads_planes(placed.problem)
            is_final = row.pools(placed.problem) or row.pitches(placed.problem)
            bound = Bound(self._guarded(bound.run, is_final), bound.packed)
        second: Runner
        if placed.layer.pooled and not row.pools(placed.problem):
            second = pooling_runner(MAX_2X2, placed.aside, placed.out)
        elif placed.gate is not None and not row.gates(placed.problem):
            second = partial(torch.mul, placed.out, placed.gate, out=placed.out)
        elif placed.problem.pitch and not row.pitches(placed.problem):
            second = _copy_into_part(placed)
        else:
            return bound
        return Bound(_after(bound.run, second), bound.packed)


@cache
def selector() -> BestOf:
    """Return the selector. It is called with a `ConvolutionStep`, and runs it by an algorithm."""
    made = BestOf(
        "fused convolution",
        [
            Alternative(
                row.name,
                _by(row),
                DEPENDS,
                supports=partial(may_run, row),
                unpromising=partial(left_out, row),
            )
            for row in table().values()
        ],
        lambda step: step.problem,
        check=StepVerifier(lambda name: algorithm(name).trusted),
        policy=UnlessShared(_POLICY),
        neighbours=neighbourhood(),
    )
    return asks(made)


def neighbourhood() -> Neighbourhood[FusedProblem]:
    """Return the neighbours of fused layers: the same layer, with other batches or image sizes."""
    return Neighbourhood(lambda problem: problem.batched, lambda problem: problem[1:])


def _after(first: Runner, second: Runner) -> Runner:
    def run() -> object:
        first()
        return second()

    is_plain = not isinstance(first, Guarded)  # what PyTorch computes then would be in the team
    return native_runner(run) if is_plain and is_native(first) and is_native(second) else run


def _copy_into_part(placed: PlacedLayer) -> Runner:
    """Return a function that copies results into their part of wider pixels."""
    n, channels, height, width = placed.out.shape
    plan = ChannelPlan(
        n * height * width,
        [channels],
        pitch=placed.problem.pitch,
        dtype=str(placed.out.dtype).removeprefix("torch."),
    )
    return plan.bind([placed.aside.data_ptr()], placed.out.data_ptr())


def _by(row: Algorithm) -> Callable[[Any], None]:
    name = row.name

    def run(step: Any) -> None:
        step.runner(name)()

    return run
