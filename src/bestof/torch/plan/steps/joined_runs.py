"""Runs steps of native kernels that follow each other on one team of threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from bestof.kernels import run_steps
from bestof.torch.plan.algorithms.native_runner import Guarded, is_native
from bestof.torch.plan.steps.chosen_step import Runner
from bestof.torch.plan.steps.step import Step


def joined_runs(steps: Iterable[Step]) -> list[Runner]:
    """Return functions that run settled steps in order, fewer than there are steps.

    Each parallel region of OpenMP begins and ends with a meeting of its threads. So native kernels
    in a row are run in one region, by `run_steps`. PyTorch's own kernels would run on one thread
    there, so they stay alone.
    """
    joined: list[Runner] = []
    for is_joined, group in groupby(_parts(steps), is_native):
        runs = list(group)
        joined += [_together(runs)] if is_joined and len(runs) > 1 else runs
    return joined


def _parts(steps: Iterable[Step]) -> Iterator[Runner]:
    """Yield what steps run: the parts of those that only run others in their turn."""
    for step in steps:
        parts = () if step.chosen is None else step.chosen.running
        yield from (one.run for one in parts) if parts else (step.run,)


def _together(steps: list[Runner]) -> Runner:
    """Return a function that runs steps on one team. Where one refuses, PyTorch has all threads."""
    runs = [one.run if isinstance(one, Guarded) else one for one in steps]

    def run() -> None:
        place = run_steps(runs)
        while place < len(runs):
            refused = steps[place]
            if isinstance(refused, Guarded):
                refused.otherwise()
            place = run_steps(runs, place + 1)

    return run
