"""Adds ranges to PyTorch's profiler that name the running modules, by hooks on forward passes.

The name of a module is its path inside the outermost running module, such as `layer3.0.conv1`. The
hooks are global, so the modules of the program are not changed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from bestof.escaped import escaped
from bestof.profile.recording.named_range import new_range
from bestof.profile.recording.thread_clocks import ThreadClocks
from bestof.profile.timeline.attribution import NO_MODULE, Module
from bestof.profile.timeline.operation import MODULE


class ModuleNames:
    """Names the running modules between `start` and `stop`.

    `samples` holds the batch of each call of an outermost module, or 0 if its first tensor has
    none. The clocks are read whenever another module runs on.
    """

    def __init__(self, clocks: ThreadClocks) -> None:
        self._clocks = clocks
        self.samples: list[int] = []
        # The modules stay alive during the capture, so that no other one gets the same id.
        self._names: dict[int, tuple[nn.Module, _Name]] = {}
        self._root: nn.Module | None = None
        self._complete = False
        self._local = threading.local()
        self._handles: list[Any] = []

    def start(self) -> None:
        """Install the hooks."""
        self._handles = [
            register_module_forward_pre_hook(self._before),
            # This hook also runs if the forward pass raises, so that no range stays open.
            register_module_forward_hook(self._after, always_call=True),
        ]

    def stop(self) -> None:
        """Remove the hooks, and close open ranges."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for _, range_, _ in reversed(self._stack()):
            range_.__exit__(None, None, None)
        self._stack().clear()

    def _stack(self) -> list[tuple[nn.Module, Any, Module]]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[tuple[nn.Module, Any, Module]] = self._local.stack
        return stack

    def enter(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Begin the range of a module whose call began before `start`."""
        self._before(module, arguments)

    def _before(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        # PyTorch lists the hooks of a call before it runs them, so one may run after `stop`.
        if not self._handles or torch.compiler.is_compiling():
            return
        stack = self._stack()
        if not stack:
            self._complete = False
            if module is not self._root:
                self._learn(module)
            self.samples.append(_batch(arguments))
        known = self._names.get(id(module))
        if known is None and not self._complete:
            # The program has added a module. Those that are in no other module stay unknown.
            self._learn(stack[0][0] if stack else module)
            self._complete = True
            known = self._names.get(id(module))
        name = _name("", module) if known is None else known[1]
        range_ = new_range(name.text)
        range_.__enter__()
        stack.append((module, range_, name.module))
        self._clocks.read(name.module)

    def _after(self, module: nn.Module, _arguments: object, _result: object) -> None:
        stack = self._stack()
        if not any(one is module for one, _, _ in stack):
            return
        # If the pre-hook of an inner module raised, its hook did not run. It ends with the outer
        # one.
        while stack:
            one, range_, _ = stack.pop()
            range_.__exit__(None, None, None)
            if one is module:
                break
        self._clocks.read(stack[-1][2] if stack else NO_MODULE)

    def _learn(self, root: nn.Module) -> None:
        """Note the names inside a module. This takes 3 ms for ResNet50."""
        self._root = root
        for name, module in root.named_modules():
            self._names[id(module)] = module, _name(name, module)


@dataclass(frozen=True, slots=True)
class _Name:
    """The path and class of a module, and the name of its range, made once."""

    module: Module
    text: str


def _name(path: str, module: nn.Module) -> _Name:
    # PyTorch refuses a range whose name has a lone surrogate.
    path, kind = escaped(path), escaped(type(module).__name__)
    return _Name((path, kind), f"{MODULE}{kind}:{path}")


def _batch(arguments: tuple[Any, ...]) -> int:
    """Return the size of the first axis of the first tensor."""
    first = next((one for one in arguments if isinstance(one, torch.Tensor)), None)
    return 0 if first is None or first.ndim == 0 else int(first.shape[0])
