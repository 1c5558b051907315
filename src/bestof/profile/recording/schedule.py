"""Starts and ends a recording after some steps of a program, which need not know about it.

A step ends with an optimizer's step; see `StepEnds` for several optimizers. Without gradients, it
is a call of an outermost module. The recording starts and ends just before an outermost module is
called, so that no range is cut.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from bestof.errors import BestofError, ProfileError
from bestof.profile.profile import Profile
from bestof.profile.recording.recorder import Recorder
from bestof.torch.process.step_ends import StepEnds


class Schedule:
    """Records `steps` steps after the first `skip`, or all of them if `steps` is 0.

    The hooks run inside the program, so they never raise. `stop` raises the reason if a recording
    failed. A forked process records nothing.
    """

    def __init__(self, title: str, skip: int, steps: int, dispatch: bool = False) -> None:
        self._recorder = Recorder(title, dispatch)
        self._skip = skip
        self._steps = steps
        self._done = 0
        self._ends = StepEnds()
        self._depth = threading.local()
        self._state = "waiting"  # later running, ended, or failed
        self._error: BestofError | None = None
        self._process = os.getpid()
        self._handles: list[Any] = []

    def start(self) -> None:
        """Watch for steps. If none is skipped, start at once."""
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
            register_optimizer_step_post_hook(self._stepped),
        ]
        if self._skip == 0:
            self._begin()

    def stop(self) -> Profile | None:
        """End the recording if it is running, and return it.

        Return None if the program ended before the recording began. Raises BestofError if the
        recording could not begin or end.
        """
        if self._state == "running":
            self._end()
        self._unhook()
        if self._error is not None:
            raise self._error
        return self._recorder.profile if self._state == "ended" else None

    def _begin(self) -> None:
        self._to("running", self._recorder.start)

    def _end(self) -> None:
        self._to("ended", self._recorder.stop)

    def _to(self, state: str, action: Callable[[], object]) -> None:
        try:
            action()
            self._state = state
        except Exception as error:  # the program must run even if bestof fails
            told = ProfileError(f"the recording failed: {type(error).__name__}: {error}")
            self._error = error if isinstance(error, BestofError) else told
            self._state = "failed"
            self._unhook()

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        if depth > 0 or os.getpid() != self._process:
            return
        if self._state == "waiting" and self._done >= self._skip:
            self._begin()
            if self._state == "running":
                self._recorder.enter(module, arguments)
        elif self._state == "running" and self._steps and self._done >= self._skip + self._steps:
            self._end()
            self._unhook()

    def _after(self, _module: nn.Module, _arguments: object, _result: object) -> None:
        self._depth.value = getattr(self._depth, "value", 1) - 1
        if self._depth.value == 0 and not torch.is_grad_enabled():
            self._done += 1

    def _stepped(self, optimizer: object, _arguments: object, _keywords: object) -> None:
        self._done += self._ends.ends_step(optimizer)
