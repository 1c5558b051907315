"""Finds and times the steps of an unchanged script, and stops it between turns.

A step ends with `step` of an optimizer; see `StepEnds` for several. While the script has made no
optimizer, a call of an outermost module without gradients is a step. The time of a step runs from
the end of the one before it. So it counts everything: data, forward pass, backward pass, optimizer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import DataLoader, IterableDataset

from bestof.processors import processors_of_a_rank
from bestof.recipe.apply import FUSED, fusible
from bestof.recipe.parts import Facts
from bestof.torch.process.step_ends import StepEnds

LEAST_STEPS = 3


class StepClock:
    """Counts steps. After a turn it calls `pause` with the seconds of a step, and waits for it.

    `pause` returns how many seconds the next turn shall take at least. The first step of a turn is
    not counted: caches are cold, and threads of the other process may still spin. Neither are the
    batches that a loader's workers have fetched while the process waited. A turn has at least
    `least_steps` other ones.
    """

    def __init__(
        self, pause: Callable[[float | None], float], least_steps: int = LEAST_STEPS
    ) -> None:
        self._pause, self._least_steps = pause, least_steps
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._depth = 0
        self._trains = False  # whether the script has made an optimizer
        self._ends: StepEnds | None = None  # of the optimizers, once one steps
        self._validated = False  # the present step contains calls without gradients
        self._times: list[tuple[float, bool]] = []
        self._began: float | None = None  # the end of the last step that counts
        self._cold = 1  # steps that are not counted
        self._fetched = 0  # the batches that workers fetch ahead
        self._wanted = 0.0
        self._ordered = False  # whether the first turn has begun
        self._handles: list[Any] = []
        self.steps = 0
        self.convolutions = self.loaders = self.optimizer = False

    def start(self) -> None:
        """Watch the program from now on."""
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
            register_optimizer_step_post_hook(self._stepped),
        ]
        iterate = DataLoader.__iter__

        def watched(loader: DataLoader[Any]) -> Any:
            map_style = not isinstance(loader.dataset, IterableDataset)
            self.loaders |= loader.num_workers == 0 and map_style
            fetched = loader.num_workers * (loader.prefetch_factor or 0)
            self._fetched = max(self._fetched, fetched)
            return iterate(loader)

        DataLoader.__iter__ = watched  # type: ignore[method-assign]  # to see the loaders
        make = Optimizer.__init__

        def made(optimizer: Optimizer, *args: Any, **options: Any) -> None:
            self._trains = True  # a validation before the first step is none
            make(optimizer, *args, **options)

        setattr(Optimizer, "__init__", made)  # noqa: B010 - mypy takes no method of another type

    def stop(self) -> None:
        """Count no more steps."""
        for handle in self._handles:
            handle.remove()

    def facts(self) -> Facts:
        """Return what is known of the program."""
        threads, processors = torch.get_num_threads(), processors_of_a_rank()
        return Facts(threads, processors, self.convolutions, self.loaders, self.optimizer)

    def _ours(self) -> bool:
        if torch.compiler.is_compiling():  # what follows would break the graph
            return False
        return os.getpid() == self._process and threading.get_ident() == self._thread

    def _before(self, module: nn.Module, _arguments: object) -> None:
        if self._ours():
            if self._depth == 0 and self.steps < LEAST_STEPS and not self.convolutions:
                self.convolutions = any(isinstance(one, nn.Conv2d) for one in module.modules())
            self._depth += 1

    def _after(self, _module: nn.Module, _arguments: object, _result: object) -> None:
        if not self._ours():
            return
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and not torch.is_grad_enabled():
            self._validated = True
            if self._ends is None and not self._trains:
                self._step()

    def _stepped(self, optimizer: Optimizer, *_: object) -> None:
        if not self._ours():
            return
        if self._ends is None:
            self._ends = StepEnds()
            # Calls before the optimizer was made have begun a turn.
            self._times, self._began, self._cold = [], None, 1 + self._fetched
            self.optimizer = type(optimizer) in FUSED and any(
                group.get("fused") is None and group.get("foreach") is None and fusible(group)
                for group in optimizer.param_groups
            )
        if self._ends.ends_step(optimizer):
            self._step()

    def _step(self) -> None:
        now = perf_counter()
        self.steps += 1
        if not self._ordered:
            self._wanted, self._cold = self._pause(None), 1 + self._fetched
            self._ordered = True
        elif self._began is not None:
            if self._cold:
                self._cold -= 1
            else:
                self._times.append((now - self._began, self._validated))
            if (
                len(self._times) >= self._least_steps
                and sum(t for t, _ in self._times) >= self._wanted
            ):
                self._wanted = self._pause(seconds_of(self._times))
                self._times, self._cold = [], 1 + self._fetched
        self._validated = False
        self._began = perf_counter()


def seconds_of(times: list[tuple[float, bool]]) -> float:
    """Return the mean seconds of a step. Each has the mark whether a validation ran in it.

    Marked steps are left out where they are the smaller part, as they come seldom.
    """
    plain = [seconds for seconds, validated in times if not validated]
    if 2 * len(plain) <= len(times):
        plain = [seconds for seconds, _ in times]
    return sum(plain) / len(plain)
