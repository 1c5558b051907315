"""Plans for `interrupted.py`: made, called, prepared, saved, loaded and bound anew while
interrupted.

Afterwards every step is taken again. All results are compared with the model's in float64, another
thread can call the plan, and PyTorch's modes are as before.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from interrupted import BESTOF, Interruption, print_sweeps, sweep
from torch import Tensor, nn

import bestof.torch as bt
from bestof.torch.plan.optimize import load

_EPS = torch.finfo(torch.float32).eps
# Longest sum times layers; every operand is at most 5 in magnitude.
_APART = 72 * 3 * _EPS * 25


def _model() -> nn.Module:
    torch.manual_seed(0)
    layers = (
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    )
    return nn.Sequential(*layers).eval()


def _images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


MODEL = _model()
WIDE = copy.deepcopy(MODEL).double()
SHAPES = ((2, 3, 8, 8), (1, 3, 9, 7), (3, 3, 8, 8))


class World:
    """A model, its plan, and what a program does with them."""

    def __init__(self, folder: Path, interruption: Interruption) -> None:
        self.interruption = interruption
        self.file = folder / "plan"
        self.plan: Any = None

    def hold(self, plan: Any, *shape: int) -> None:
        """Hold what a plan computes right."""
        x = _images(*shape)
        got = plan(x)
        with torch.no_grad():
            right = WIDE(x.double())
        assert bool(((got.double() - right).abs() <= _APART).all()), f"wrong for {shape}"

    def make(self) -> None:
        self.plan = bt.optimize(MODEL, _images(*SHAPES[0]))

    def comes_back(self) -> None:
        for _ in range(4):
            self.hold(self.plan, *SHAPES[1])

    def bind_anew(self) -> None:
        torch.set_num_threads(2)
        try:
            self.hold(self.plan, *SHAPES[0])
        finally:
            torch.set_num_threads(1)

    def prepare(self) -> None:
        self.plan.prepare([SHAPES[2]])
        self.hold(self.plan, *SHAPES[2])

    def save(self) -> None:
        self.plan.save(self.file)

    def load(self) -> None:
        self.hold(load(self.file), *SHAPES[0])

    def steps(self) -> tuple[Callable[[], object], ...]:
        return (
            *(lambda: self.hold(self.plan, *SHAPES[0]), self.comes_back, self.bind_anew),
            *(self.prepare, self.save, self.load),
        )


def _made(world: World) -> None:
    world.interruption.take(world.make)
    if world.plan is None:
        world.make()


def _used(world: World) -> None:
    world.plan = bt.optimize(MODEL, _images(*SHAPES[0]), tune=False)
    world.save()
    for step in world.steps():
        world.interruption.take(step)
        world.hold(load(world.file), *SHAPES[0])  # the file is whole at any time


SCENARIOS: dict[str, Callable[[World], None]] = {"optimize": _made, "plan": _used}


def in_plans(filename: str) -> bool:
    """Return whether a file belongs to plans."""
    return filename.startswith(
        (
            os.path.join(BESTOF, "torch", "plan"),
            os.path.join(BESTOF, "whole_file"),
        )
    )


def _modes() -> tuple[object, ...]:
    return (
        *(torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        *(torch.is_autocast_enabled("cpu"), torch.get_num_threads(), torch.get_default_dtype()),
    )


def faults(name: str, **options: Any) -> tuple[int, list[str]]:
    """Interrupt a scenario at every line, or every so many. Return their number, and faults."""

    def run(interruption: Interruption) -> None:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = _modes()
            world = World(Path(folder), interruption)
            SCENARIOS[name](world)
            assert _modes() == before, "a mode was left on"
            for step in world.steps():
                step()
            with ThreadPoolExecutor(1) as other:
                other.submit(world.hold, world.plan, *SHAPES[0]).result(60)
            left = [one.name for one in Path(folder).iterdir()]
            assert left == ["plan"], f"left beside the file: {left}"

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return sweep(name, run, in_plans, **options)
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    print_sweeps(faults, SCENARIOS, sys.argv[1:])
