"""Tells which modules of a model met a problem, for reports.

A call that is answered in Python looks up the stack for the module that makes it. Others answer in
C++, and modules that are alike share a problem. So global hooks note, for the first passes through
a model, which modules are alike: those of one class with the same settings, and parameters and
operands of the same shapes, which want gradients alike. The hooks also tell the backward pass whose
gradients it computes. They are taken out after a few passes that show no new module, and do not go
in before a module has called in Python, so that compiled models never see them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from types import FrameType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from bestof.selection.reports.report import Met
from bestof.torch.rows.call_counts import CallCounts, Key

ModulePath: TypeAlias = tuple[str, str]
"""The class of the outermost module, and the path of a module in it."""

_CALL = nn.Module._call_impl.__code__
_FRAMES = 60  # above a call; a deeper module stays unknown
_QUIET = 3  # passes through a model without a new module, after which the hooks are taken out
_NODES = 8  # of autograd, from the result of a module back to its operands


class MetModules:
    """The modules that met problems since `start`; one object for the process."""

    def __init__(self) -> None:
        # The names in each outermost module. They hold no module alive.
        self._names: WeakKeyDictionary[nn.Module, dict[int, str]] = WeakKeyDictionary()
        self._alike: dict[Hashable, dict[ModulePath, None]] = {}
        self._look: dict[ModulePath, Hashable] = {}
        self._handles: list[Any] = []
        self._quiet = 0
        self._local = threading.local()

    def start(self) -> None:
        """Note modules from now on."""
        CallCounts.where = self.where

    def stop(self) -> None:
        """Note no more modules, and take the hooks out. What is known stays."""
        CallCounts.where = None
        self._remove_hooks()

    def where(self) -> ModulePath | None:
        """Return the module that makes the present call, or that the backward pass is in."""
        modules = list(running_modules(sys._getframe(1)))
        if not modules:
            return getattr(self._local, "backward", None)
        try:
            return self._where(modules)
        except Exception:  # of a module of the program, which must run
            return None

    def _where(self, modules: list[nn.Module]) -> ModulePath | None:
        if any(type(one).__name__ == "OptimizedModule" for one in modules):
            return None
        place = self._place(modules[-1], modules[0])
        if place not in self._look and not self._handles:
            self._quiet = 0
            self._handles = [
                register_module_forward_pre_hook(self._before),
                register_module_forward_hook(self._after, always_call=True),
            ]
        return place

    def texts(self, places: tuple[ModulePath, ...]) -> tuple[str, ...]:
        """Return the names of modules and of those that are alike.

        A name is a path such as `layer1.0.conv1`. The class of the model stands in front if several
        were met.
        """
        found: dict[ModulePath, None] = {}
        for place in places:
            found.update(self._alike.get(self._look.get(place), {}) or {place: None})
        several = len({root for root, _ in (*self._look, *found)}) > 1
        return tuple(
            ".".join(filter(None, place)) if several else place[1] or place[0] for place in found
        )

    def _place(self, root: nn.Module, module: nn.Module) -> ModulePath:
        names = self._names.get(root)
        if names is None or id(module) not in names:
            names = {id(one): name for name, one in root.named_modules()}
            self._names[root] = names
        return type(root).__name__, names.get(id(module), type(module).__name__)

    def _stack(self) -> list[ref[nn.Module]]:
        """Return the modules that this thread runs. It keeps none alive."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[ref[nn.Module]] = self._local.stack
        return stack

    def _before(self, module: nn.Module, _arguments: object) -> None:
        if not self._handles or torch.compiler.is_compiling():
            return
        stack = self._stack()
        running = list(running_modules(sys._getframe(1)))  # the first one is this module
        if stack and not any(one is stack[-1]() for one in running[1:]):
            stack.clear()  # an interrupt, of which hooks do not hear, has ended what was running
        if not stack:  # the hooks may have gone in while outer modules were running
            self._local.root = ref([module, *running][-1])
        stack.append(ref(module))

    def _after(self, module: nn.Module, arguments: tuple[Any, ...], result: object) -> None:
        stack = self._stack()
        if torch.compiler.is_compiling() or not any(one() is module for one in stack):
            return
        root = self._local.root() or module
        while stack.pop()() is not module:  # the pre-hook of an inner module raised
            pass
        try:
            self._note(self._place(root, module), module, arguments, result)
        except Exception:  # of a module of the program, such as of its `extra_repr`
            self._remove_hooks()
        if not stack:
            self._quiet += 1
            if self._quiet > _QUIET:
                self._remove_hooks()

    def _note(
        self, place: ModulePath, module: nn.Module, arguments: tuple[Any, ...], result: object
    ) -> None:
        if place not in self._look:
            operands = [one for one in arguments if isinstance(one, Tensor)]
            shapes = tuple((one.shape, one.dtype, one.requires_grad) for one in operands)
            parts = tuple((type(one), one.extra_repr()) for one in module.modules())
            # Not every module tells its sizes by `extra_repr`: `Conv1D` of transformers does not.
            weights = tuple((one.shape, one.requires_grad) for one in module.parameters())
            look = (parts, shapes, weights, module.training)
            self._quiet = 0
            self._look[place] = look
            self._alike.setdefault(look, {})[place] = None
        is_leaf = next(module.children(), None) is None
        if is_leaf and isinstance(result, Tensor) and result.grad_fn is not None:
            ends = {one.grad_fn for one in arguments if isinstance(one, Tensor)}
            for node in _nodes(result.grad_fn, ends):
                node.register_prehook(lambda _: setattr(self._local, "backward", place))
                node.register_hook(lambda *_: setattr(self._local, "backward", None))

    def _remove_hooks(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._stack().clear()


def running_modules(frame: FrameType | None) -> Iterator[nn.Module]:
    """Yield the running modules above a frame, the innermost first."""
    for _ in range(_FRAMES):
        if frame is None:
            return
        if frame.f_code is _CALL:
            yield frame.f_locals["self"]
        frame = frame.f_back


def _nodes(last: Any, ends: set[Any]) -> Iterator[Any]:
    """Yield the nodes of autograd from a result back to the operands, at most _NODES."""
    waiting, seen = [last], set(ends)
    for _ in range(_NODES):
        if not waiting:
            return
        node = waiting.pop()
        if node is None or node in seen or node.name().endswith("AccumulateGrad"):
            continue
        seen.add(node)
        yield node
        waiting += [one for one, _ in node.next_functions]


MET_MODULES = MetModules()


def met(counts: CallCounts[Key], refused: Callable[[Key], int] = lambda _: 0) -> dict[Key, Met]:
    """Return how often each problem was met, and the names of the modules that met it.

    refused: how many calls of a problem rows have left to PyTorch's own kernel.
    """
    return {
        key: Met(calls, MET_MODULES.texts(tuple(counts.places.get(key, ()))), refused(key))
        for key, calls in counts.totals().items()
    }
