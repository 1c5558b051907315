"""Layers under `enable` for `interrupted.py`, interrupted while they are met and tuned.

A scenario puts fresh overrides in, with one planted alternative that is wrong and seems to be
fastest, and calls a layer while the interruption is armed. Then it goes on without. All results are
compared with PyTorch's own in float64. In the end the layer must be tuned: a step must run no more
lines of bestof than it does in a run without an interrupt.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from interrupted import (
    BESTOF,
    Interrupt,
    Interruption,
    TimeLimit,
    assert_nothing_is_open,
    sweep,
)
from torch import Tensor
from torch.nn import functional as F

from bestof.configuration import Configuration
from bestof.selection import BestOf
from bestof.selection.state import registry
from bestof.selection.store.memory import MemoryStore
from bestof.selection.trials.trial import current_trial, detours
from bestof.torch.backends.device import CPU
from bestof.torch.dispatch.convolution.override import ConvolutionOverride
from bestof.torch.dispatch.override import Override
from bestof.torch.ops.attention.attention import Attention
from bestof.torch.ops.attention.backward import AttentionBackward
from bestof.torch.ops.attention.forward import AttentionForward
from bestof.torch.ops.bound import DIRECT
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.passes import PASSES
from bestof.torch.ops.convolution.promise import promise
from bestof.torch.ops.pooling.max_pool2d import MaxPool2d, channels_last
from bestof.torch.ops.product.product import Product
from bestof.torch.ops.row import Row

PLANTED = "planted"
# What trials take by the clock of these selectors. Names that are not here take 5 seconds.
_SECONDS = {
    **{PLANTED: 0.1, "native": 1.0, "native direct": 1.0, "packed": 1.0},
    **{"independent": 1.0, "joint": 100.0, "shared im2row": 100.0},
}
_LAST = 8  # steps whose lines are counted
_EPS = torch.finfo(torch.float32).eps

Results = list[tuple[Tensor, Tensor]]
"""Float64 results, and how far others may be from them."""


class World:
    """Overrides that are in, and the steps of a program that calls a layer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.selectors: list[BestOf] = []
        self.step: Callable[[], list[Tensor]] = list
        self.right: Results = []
        self.steps, self.steps_after = 40, 300

    def clock(self) -> float:
        """Return the time, which the alternative on trial has advanced."""
        trial: Any = current_trial.get()
        name = ""
        if trial is not None and not trial.done and trial.position >= 0:
            name = trial.owner.names[trial.position]
        self.now += _SECONDS.get(name, 5.0)
        return self.now

    def take(self) -> None:
        """Take a step, and hold its results right."""
        got = self.step()
        for place, (one, (right, apart)) in enumerate(zip(got, self.right, strict=True)):
            near = (one.double() - right).abs() <= apart  # false for NaN
            assert bool(near.all()), f"result {place} is wrong"

    def run(self, interruption: Interruption, lines: list[int]) -> None:
        """Run all, and raise AssertionError if anything is not as it must be.

        `lines` holds the lines of a tuned step, if a run without an interrupt has shown them.
        """
        with interruption.armed():
            for _ in range(self.steps):
                try:
                    self.take()
                except (Interrupt, TimeLimit):
                    assert interruption.happened
        for _ in range(self.steps_after):
            self.take()
        self.look(lines)

    def look(self, lines: list[int]) -> None:
        """Look at everything that an interrupt could have left."""
        assert_nothing_is_open(self.selectors)
        for selector in self.selectors:
            for problem in selector.report().problems:
                where = f"{selector.name} {problem.problem}"
                assert problem.decision is not None, f"{where} is undecided"
                assert problem.decision != PLANTED, f"{where} is decided for what is wrong"
                for row in problem.alternatives:
                    assert row.name == PLANTED or row.reason is None, f"{where}: {row.reason}"
        counted = []
        for _ in range(_LAST):
            step = Interruption(0, in_bestof)
            with step.armed():
                self.take()
            counted.append(step.passed)
        if not lines:
            lines.append(min(counted))
        assert min(counted) <= lines[0], f"a step runs {min(counted)} lines, not {lines[0]}"


def in_bestof(filename: str) -> bool:
    """Return whether a file belongs to bestof."""
    return filename.startswith(BESTOF)


def in_torch(filename: str) -> bool:
    """Return whether a file belongs to bestof's integration into PyTorch."""
    return filename.startswith(BESTOF + os.sep + "torch")


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@contextmanager
def _clocked(world: World) -> Iterator[None]:
    """Give this world's clock to selectors that are made in this block."""
    defaults: Any = BestOf.__init__.__kwdefaults__
    before = dict(defaults)
    defaults.update(clock=world.clock, drift=False)
    try:
        yield
    finally:
        defaults.update(before)


def _wrong(right: Tensor) -> Tensor:
    return torch.zeros_like(right)


def _planted_convolutions() -> ConvolutionOverride:
    parts = []
    for one in PASSES:
        first = one.rows[0]

        def function(*args: Any, first: Pass = first) -> Tensor:
            return _wrong(first.function(*args))

        bound = promise(DIRECT, one.direction)
        planted = Row(PLANTED, function, bound=bound, accuracy="float32")
        rows = [row for row in one.rows if row.name in ("native direct", "im2row")]
        parts.append(Override(type(one)(CPU, (first, planted, *rows))))
    return ConvolutionOverride(CPU, parts)


@contextmanager
def _convolution(world: World, *, trains: bool) -> Iterator[None]:
    x, w, b = _random(2, 8, 6, 7), _random(8, 8, 3, 3, seed=1), _random(8, seed=2)
    gradient = _random(2, 8, 6, 7, seed=3)
    world.right = _sums(partial(F.conv2d, padding=1), (x, w, b), gradient if trains else None, 80)
    override = _planted_convolutions()
    layer = override.layer
    world.selectors = [layer.forward_pass]
    if trains:
        world.selectors += [layer.input_gradient, layer.weight_gradient, layer.layer]
    world.step = _layer(partial(F.conv2d, padding=1), (x, w, b), gradient if trains else None)
    override.configure(Configuration())
    override.register()
    try:
        yield
    finally:
        override.remove()


@contextmanager
def _linear(world: World, *, trains: bool) -> Iterator[None]:
    world.steps, world.steps_after = 20, 30
    x, w, b = _random(64, 256), _random(256, 256, seed=1), _random(256, seed=2)
    gradient = _random(64, 256, seed=3)
    world.right = _sums(F.linear, (x, w, b), gradient if trains else None, 256)
    product = Product()
    first = product.rows[0]

    def function(*args: Any) -> Tensor:
        return _wrong(first.function(*args))

    product.rows = (first, Row(PLANTED, function), *product.rows[1:])
    override = Override(product)
    world.selectors = [override.selector]
    world.step = _layer(F.linear, (x, w, b), gradient if trains else None)
    override.configure(Configuration())
    assert override.is_registered
    try:
        yield
    finally:
        override.remove()


def _plant(attention: Attention) -> Attention:
    """Make the native kernel wrong."""
    first, native, *_ = attention.rows

    def function(*given: Any) -> Any:
        return tuple(_wrong(one) for one in native.function(*given))

    attention.rows = (first, replace(native, function=function))
    return attention


@contextmanager
def _attention(world: World, *, wrong: bool) -> Iterator[None]:
    world.steps, world.steps_after = 6, 12
    q, k, v = (_random(1, 2, 256, 64, seed=seed) for seed in range(3))
    gradient = _random(1, 2, 256, 64, seed=3)
    function = F.scaled_dot_product_attention
    right = _by_pytorch(function, [one.double() for one in (q, k, v)], gradient.double())
    # Scores of up to 64 products of up to 5; sums over 256 keys or queries.
    world.right = [(one, torch.tensor(256 * 8 * _EPS * 25.0)) for one in right]
    operations = [AttentionForward(), AttentionBackward()]
    overrides = [Override(_plant(one) if wrong else one) for one in operations]
    if not wrong:
        world.selectors = [one.selector for one in overrides]
    world.step = _layer(function, (q, k, v), gradient)
    for override in overrides:
        override.configure(Configuration())
    try:
        yield
    finally:
        for override in overrides:
            override.remove()


def _wrong_pooling(original: Any, problem: Any, image: Tensor) -> Any:
    maxima, indices = channels_last(original, problem, image)
    return maxima + 1.0, indices


class _PlantedPooling(MaxPool2d):
    """Pooling one of whose rows is wrong."""

    rows = (
        MaxPool2d.rows[0],
        replace(MaxPool2d.rows[1], function=_wrong_pooling),
        MaxPool2d.rows[2],
    )


@contextmanager
def _pooling(world: World) -> Iterator[None]:
    world.steps, world.steps_after = 6, 12
    x = _random(1, 8, 128, 128)
    world.right = [(F.max_pool2d(x, 3, 2, 1).double(), torch.tensor(0.0))]
    override = Override(_PlantedPooling())
    world.step = lambda: [F.max_pool2d(x, 3, 2, 1)]
    override.register()
    try:
        yield
    finally:
        override.remove()


def _by_pytorch(
    function: Callable[..., Tensor], operands: list[Tensor], gradient: Tensor | None
) -> list[Tensor]:
    if gradient is None:
        with torch.no_grad():
            return [function(*operands)]
    leaves = [one.detach().requires_grad_() for one in operands]
    output = function(*leaves)
    output.backward(gradient)
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def _layer(
    function: Callable[..., Tensor], operands: tuple[Tensor, ...], gradient: Tensor | None
) -> Callable[[], list[Tensor]]:
    kept = list(operands)
    return lambda: _by_pytorch(function, kept, gradient)


def _sums(
    function: Callable[..., Tensor],
    operands: tuple[Tensor, ...],
    gradient: Tensor | None,
    terms: int,
) -> Results:
    """Return the results, and eps * terms times the sum of the magnitudes of their terms."""
    wide = [one.double() for one in operands]
    right = _by_pytorch(function, wide, None if gradient is None else gradient.double())
    magnitudes = _by_pytorch(
        function, [one.abs() for one in wide], None if gradient is None else gradient.double().abs()
    )
    pairs = zip(right, magnitudes, strict=True)
    return [(one, _EPS * terms * magnitude.max()) for one, magnitude in pairs]


SCENARIOS: dict[str, Callable[[World], Any]] = {
    "convolution": partial(_convolution, trains=True),
    "frozen convolution": partial(_convolution, trains=False),
    "linear": partial(_linear, trains=True),
    "frozen linear": partial(_linear, trains=False),
    "attention": partial(_attention, wrong=False),
    "wrong attention": partial(_attention, wrong=True),
    "pooling": _pooling,
}
# A store that has decided is healthy in these.
STORED = ("convolution", "frozen convolution", "frozen linear", "attention")


@contextmanager
def _apart() -> Iterator[None]:
    """Keep decisions in a fresh memory, and search by one round of trials."""
    defaults, threads = registry.Defaults, torch.get_num_threads()
    torch.set_num_threads(1)
    before = defaults.policy, defaults.store, defaults.store_named
    registry.use_store(MemoryStore())
    registry.use_policy("rounds:rounds=1")
    try:
        yield
    finally:
        defaults.policy, defaults.store, defaults.store_named = before
        torch.set_num_threads(threads)


def faults(
    name: str,
    *,
    chosen: Callable[[str], bool] = in_torch,
    stored: bool = False,
    **options: Any,
) -> tuple[int, list[str]]:
    """Interrupt a scenario at every line, or every so many. Return their number, and faults.

    stored: whether a healthy store decides.
    """
    lines: list[int] = []

    def run(interruption: Interruption) -> None:
        with warnings.catch_warnings(), _apart():
            warnings.simplefilter("ignore")
            if stored:
                first = World()
                with _clocked(first), SCENARIOS[name](first):
                    for _ in range(first.steps_after):
                        first.take()
            world = World()
            with _clocked(world), SCENARIOS[name](world):
                world.run(interruption, lines)

    def clean() -> None:
        detours.clear()
        current_trial.set(None)

    return sweep(name, run, chosen, clean=clean, **options)


if __name__ == "__main__":
    import sys
    import time

    every = int(sys.argv[1])
    for name in sys.argv[2:] or SCENARIOS:
        for stored in (False, True) if name in STORED else (False,):
            for chosen in (in_torch, in_bestof):
                begun = time.perf_counter()
                number, wrong = faults(name, stored=stored, chosen=chosen, every=every)
                print(
                    f"{name}{', stored' if stored else ''}, {chosen.__name__}: "
                    f"{number} lines, {len(wrong)} faults, {time.perf_counter() - begun:.0f} s",
                    flush=True,
                )
                for one in wrong[:12]:
                    print("   ", one)
