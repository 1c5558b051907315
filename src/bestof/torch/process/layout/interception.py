"""Watches all models of the program while bestof tunes layouts."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from bestof.torch.process.layout.model import ModelLayout

_MOST_FINISHED = 20


class _State:
    process = 0
    thread = 0
    handles: ClassVar[list[Any]] = []
    models: ClassVar[weakref.WeakKeyDictionary[nn.Module, ModelLayout]] = (
        weakref.WeakKeyDictionary()
    )
    depth = threading.local()
    finished: ClassVar[list[str]] = []  # the reports of models that no longer exist
    probing = False
    fixed = False


def tune_layouts(wanted: bool, fixed: bool = False) -> None:
    """Tune the layout of each model from its next call on, or put all layouts back.

    fixed: convert every model that can be converted, and compare nothing.
    """
    _State.fixed = fixed
    if wanted and not _State.handles:
        _State.process, _State.thread = os.getpid(), threading.get_ident()
        made: list[Any] = []
        try:
            made.append(register_module_forward_pre_hook(_before))
            made.append(register_module_forward_hook(_after, always_call=True))
            made.append(register_optimizer_step_pre_hook(_stepping))
            made.append(register_optimizer_step_post_hook(_stepped))
            _State.handles = made
        except BaseException:  # an interrupt: all or none
            _State.handles = []
            for handle in made:
                handle.remove()
            raise
    elif not wanted and _State.handles:
        for handle in _State.handles:
            handle.remove()
        _State.handles = []
        for layout in list(_State.models.values()):
            layout.end()
        _State.models.clear()


def layout_lines() -> list[str]:
    """Return the report of every model, a line each."""
    living = [one.line() for one in list(_State.models.values()) if one.concerned]
    return [f"layout {line}" for line in [*_State.finished, *living]]


def _keep(layout: ModelLayout) -> None:
    if layout.concerned:
        _State.finished = [*_State.finished[1 - _MOST_FINISHED :], layout.line()]


def _foreign() -> bool:
    """Return whether a call is another thread's or process's, or one under a tracer.

    Only the thread that enabled tuning changes layouts.
    """
    return (
        _State.probing
        or threading.get_ident() != _State.thread
        or os.getpid() != _State.process
        or torch._C._get_tracing_state() is not None
        or torch.compiler.is_compiling()
    )


def _before(module: nn.Module, arguments: tuple[Any, ...]) -> None:
    if _foreign():
        return
    depth = getattr(_State.depth, "value", 0)
    _State.depth.value = depth + 1
    if depth > 0:
        return
    layout = _State.models.get(module)
    if layout is None:
        layout = _State.models[module] = ModelLayout(module, _State.fixed)
        # A model may end before the program, whose report still tells of it.
        weakref.finalize(module, _keep, layout).atexit = False
    _State.probing = True
    try:
        layout.before(arguments)
    finally:
        _State.probing = False


def _after(module: nn.Module, _arguments: object, result: Any) -> Any:
    if _foreign():
        return None
    _State.depth.value = max(0, getattr(_State.depth, "value", 1) - 1)
    layout = _State.models.get(module) if _State.depth.value == 0 else None
    return None if layout is None else layout.after(result)


def _stepping(optimizer: torch.optim.Optimizer, *_: object) -> None:
    for layout in list(_State.models.values()):
        layout.align(optimizer)


def _stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if not _foreign():
        for layout in list(_State.models.values()):
            layout.stepped(optimizer)
