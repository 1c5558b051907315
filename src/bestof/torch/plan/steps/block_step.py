"""A block of layers at its place in memory: one kernel runs it, or its layers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from bestof.kernels import algorithms
from bestof.kernels.inverted_residual import POINTWISE
from bestof.selection import Alternative, BestOf, Race, UnlessShared
from bestof.torch.backends.depends import DEPENDS
from bestof.torch.plan.algorithms.algorithm import PlacedLayer
from bestof.torch.plan.algorithms.inverted_residual import (
    PRODUCTS,
    BoundByRows,
    bind_by_rows,
    offered_name,
)
from bestof.torch.plan.layers.block import (
    BY_LAYERS,
    BY_ROWS_BF16,
    PYTORCH,
    Block,
    BlockProblem,
)
from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Packed
from bestof.torch.plan.steps.block_comparison import compare_block
from bestof.torch.plan.steps.chosen_step import Choice, Runner
from bestof.torch.plan.steps.compared_step import ComparedStep
from bestof.torch.plan.steps.comparison import Comparison
from bestof.torch.plan.steps.convolution_step import ConvolutionStep, LayerChoice
from bestof.torch.plan.steps.layer_reference import error_of
from bestof.torch.plan.steps.step_verifier import StepVerifier
from bestof.torch.rows.offer import asks, is_offered

# As few rounds as for fused layers, which race at the same time.
_POLICY = Race(max_trials=12)


class BlockChoice(Choice):
    """What runs a block, and the choices of its layers, which count if they run it."""

    problem: BlockProblem

    def __init__(self, problem: BlockProblem, weights: Sequence[FrozenWeights]) -> None:
        super().__init__(problem)
        pairs = zip(problem.layers, weights, strict=True)
        self.layers = tuple(LayerChoice(one, own) for one, own in pairs)

    @property
    def parts(self) -> Sequence[Choice]:
        """The choices of the layers."""
        return self.layers

    def can_run(self, name: str) -> bool:
        """Return whether the name is that of a decision; see `recorded`."""
        name, _, layers = name.partition(": ")
        if not layers:
            return super().can_run(name)
        names = layers.split(", ")
        return len(names) == len(self.layers) and all(
            choice.can_run(one) for choice, one in zip(self.layers, names, strict=True)
        )

    @property
    def recorded(self) -> str | None:
        """The decision with those of the layers, as a plan file holds it."""
        names = [choice.algorithm for choice in self.layers]
        if self.algorithm != BY_LAYERS:
            return self.algorithm
        return None if None in names else f"{BY_LAYERS}: {', '.join(map(str, names))}"

    def settle(self, name: str) -> None:
        """Order an alternative, and the algorithms of the layers if the name tells them."""
        name, _, layers = name.partition(": ")
        super().settle(name)
        if layers:
            for choice, one in zip(self.layers, layers.split(", "), strict=True):
                choice.settle(one)


class BlockStep(ComparedStep):
    """A block at its place in memory, and its layers at theirs.

    x, out, residual: (N, C, H, W) in channels last. between: where the results of all layers but
    the last lie if the layers run the block.
    """

    pytorch: ClassVar[str] = PYTORCH

    choice: BlockChoice

    def __init__(
        self,
        block: Block,
        choice: BlockChoice,
        x: Tensor,
        out: Tensor,
        residual: Tensor | None,
        between: Sequence[Tensor],
    ) -> None:
        super().__init__(choice, out, residual)
        self.block, self._x, self._residual = block, x, residual
        self._values = (x, *between, out)
        self.layers = tuple(self._layer_steps())
        self._by_rows: dict[str, BoundByRows] = {}
        self._taken: str | None = None

    @property
    def problem(self) -> BlockProblem:
        """What the alternative is chosen for."""
        return self.choice.problem

    @property
    def running(self) -> tuple[ConvolutionStep, ...]:
        """The layers, if they run the block."""
        return self.layers if self.algorithm == BY_LAYERS else ()

    @property
    def reads(self) -> tuple[tuple[FrozenWeights, tuple[Packed, ...]], ...]:
        """The weights of the layers, and the layouts of each that the step holds."""
        if self.algorithm == BY_LAYERS:
            return tuple(one for layer in self.layers for one in layer.reads)
        weights = [layer.weights for layer in self.block.layers]
        bound = self._by_rows.get(self.algorithm or "")
        if bound is None:
            return tuple((one, ()) for one in weights)
        return tuple((one, (own,)) for one, own in zip(weights, bound.packed, strict=True))

    @property
    def flops(self) -> int:
        """The additions and multiplications of all layers."""
        return sum(one.convolution.flops for one in self.problem.layers)

    @property
    def promised_error(self) -> float:
        """The rms error of the results, if those of all layers add up."""
        return sum(error_of(one, None) for one in self.problem.layers)

    def trusts(self, name: str) -> bool:
        """Return whether an alternative is PyTorch's operators."""
        return name == PYTORCH

    @property
    def is_comparable(self) -> bool:
        """Whether the alternative is not PyTorch's own, whose weights are still there."""
        return super().is_comparable and not any(one.is_released for one, _ in self.reads)

    def compared(self, name: str | None, overwritten: Tensor | None) -> Comparison:
        """Compare the result of the last run with PyTorch's, on operands rounded alike."""
        residual = self._residual if overwritten is None else overwritten
        rounds = name == BY_ROWS_BF16
        return compare_block(self.block, self.problem, self._x, residual, self.out, rounds)

    def prepare(self) -> None:
        """Pack the weights for the kernel and for all algorithms of the layers."""
        for name in filter(self.problem.can_run, PRODUCTS):
            with suppress(Exception):  # it fails again at its trial, which reports why
                self.runner(name)
        for layer in self.layers:
            layer.prepare()

    @property
    def raced_bytes(self) -> int:
        """About the bytes of the weights that are packed for a race."""
        return sum(layer.raced_bytes for layer in self.layers)

    def runner(self, name: str) -> Runner:
        """Return the function that runs the block by one alternative."""
        if name == BY_LAYERS:
            return self._run_layers
        if name == PYTORCH:
            return self._run_pytorch
        if name not in self._by_rows:
            self._by_rows[name] = bind_by_rows(name, self.block, self._x, self.out, self._residual)
        return self._by_rows[name].run

    def learn(self) -> bool:
        """Take the decision if there is one; drop what other alternatives hold."""
        if not super().learn():
            return False
        if self.algorithm != self._taken:
            self._taken = self.algorithm
            self._by_rows = {
                name: bound for name, bound in self._by_rows.items() if name == self.algorithm
            }
            if self.algorithm != BY_LAYERS:
                self.layers = tuple(self._layer_steps())
        return sum(layer.learn() for layer in self.running) == len(self.running)

    @property
    def selector(self) -> BestOf:
        """The selector of all blocks."""
        return selector()

    def _layer_steps(self) -> list[ConvolutionStep]:
        steps = []
        for place, (layer, choice) in enumerate(
            zip(self.block.layers, self.choice.layers, strict=True)
        ):
            residual = self._residual if layer is self.block.layers[-1] else None
            x, out = self._values[place : place + 2]
            step = ConvolutionStep(
                PlacedLayer(layer, choice.problem, x, out, residual, out), choice
            )
            step.made_up = partial(_made_up, step)
            steps.append(step)
        return steps

    def _run_layers(self) -> None:
        for layer in self.layers:
            layer.run()

    def _run_pytorch(self) -> None:
        x = self._x
        for layer in self.block.layers:
            residual = self._residual if layer is self.block.layers[-1] else None
            x = layer.apply(x, residual, layer.weights.folded())
        self.out.copy_(x)


def _made_up(step: ConvolutionStep) -> ConvolutionStep:
    """Return a layer like one of a block, on normal operands in memory of its own."""
    placed, generator = step.placed, torch.Generator().manual_seed(0)

    def normal(value: Tensor) -> Tensor:
        return torch.empty_like(value).normal_(generator=generator)

    out = torch.empty_like(placed.out)
    residual = None if placed.residual is None else normal(placed.residual)
    own = replace(placed, x=normal(placed.images), out=out, residual=residual, aside=out)
    return ConvolutionStep(own, step.choice)


@cache
def selector() -> BestOf:
    """Return the selector of all blocks. It is called with a `BlockStep`, and runs it."""
    made = BestOf(
        "block",
        [
            Alternative(
                PYTORCH,
                _by(PYTORCH),
                DEPENDS,
                unpromising=lambda _: "the layers may each be run by PyTorch, and each by others",
            ),
            Alternative(BY_LAYERS, _by(BY_LAYERS), DEPENDS),
            *map(_kernel, PRODUCTS),
        ],
        lambda step: step.problem,
        check=StepVerifier(lambda name: name == PYTORCH),
        policy=UnlessShared(_POLICY),
    )
    return asks(made)


def _kernel(name: str) -> Alternative:
    def supports(problem: Any) -> bool:
        return problem.can_run(name) and is_offered(offered_name(name))

    def unpromising(problem: Any) -> str | None:
        emulated = algorithms()[POINTWISE[PRODUCTS[name]]].emulated
        if emulated and not problem.holds_bfloat16:  # of which the layers multiply no faster
            return "the processor has no products of bfloat16"
        return None

    return Alternative(name, _by(name), DEPENDS, supports=supports, unpromising=unpromising)


def _by(name: str) -> Callable[[BlockStep], object]:
    return lambda step: step.runner(name)()
