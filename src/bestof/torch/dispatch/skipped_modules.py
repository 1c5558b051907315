"""Leaves the calls of some modules to PyTorch, and their backward passes (`kernel.skip_modules`).

A global hook sees each call of a module. The first call of a model, which no known model has as a
part, tells the names of its modules. While a module of a matching name runs, a counter of the
thread is up, and every kernel of bestof hands its calls on (the guard "skipped" in `guards.py`). A
hook at each node of autograd between the results of the module and its arguments does the same for
the backward pass. Gradients of gradients are chosen for. Without patterns, there is no hook.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils import _pytree as pytree

from bestof.selection.notice import warn
from bestof.torch.backends.shim import enter_skipped, forget_skipped, is_skipped, leave_skipped
from bestof.torch.dispatch.met_modules import running_modules

_WITH_KWARGS: dict[int, bool] = getattr(hooks, "_global_forward_hooks_with_kwargs", {})


class SkippedModules:
    """The modules whose calls are PyTorch's own at present; one object for the process."""

    def __init__(self) -> None:
        self._patterns: tuple[str, ...] = ()
        self._unmet: dict[str, None] = {}  # patterns that have matched no module yet
        self._matches: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
        self._roots: WeakSet[nn.Module] = WeakSet()
        self._handles: list[Any] = []

    def skip(self, patterns: tuple[str, ...]) -> None:
        """Leave modules of these names to PyTorch from now on, and no others.

        Calls that run meanwhile end as they began.
        """
        if patterns == self._patterns:
            return
        self._patterns = patterns
        self._unmet.update(dict.fromkeys(patterns))
        self._matches, self._roots = WeakKeyDictionary(), WeakSet()
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
            # PyTorch 2.13 leaves this mark, and then warns in each call of a compiled module.
            _WITH_KWARGS.pop(handle.id, None)
        if patterns:
            self._handles = [
                register_module_forward_pre_hook(self._before),
                register_module_forward_hook(self._after, with_kwargs=True, always_call=True),
            ]

    def unmet(self) -> list[str]:
        """Return the patterns of the process that have matched no module that was called."""
        return list(self._unmet)

    def _before(self, module: nn.Module, _arguments: object) -> None:
        if torch.compiler.is_compiling():
            return
        matches = self._is_matching(module)
        if is_skipped() and not self._is_inside(module):
            forget_skipped()  # an interrupt, of which hooks do not hear, has ended what was running
        if matches:
            enter_skipped()

    def _after(self, module: nn.Module, *arguments_and_result: object) -> None:
        # The arguments by name are missing where the module has raised.
        *arguments, result = arguments_and_result
        if torch.compiler.is_compiling() or not self._matches.get(module):
            return
        leave_skipped()
        if is_skipped():  # the outer module sees the same nodes
            return
        ends = {one.grad_fn for one in _tensors(arguments)}
        for node in _nodes([one.grad_fn for one in _tensors(result)], ends):
            node.register_prehook(lambda _: enter_skipped())
            node.register_hook(lambda *_: leave_skipped())

    def _is_inside(self, module: nn.Module) -> bool:
        """Return whether a module that begins runs inside a skipped one, or inside of a gradient.

        Checkpoints run modules while a gradient is computed.
        """
        running = (one for one in running_modules(sys._getframe(1)) if one is not module)
        in_gradient = torch._C._current_autograd_node() is not None
        return in_gradient or any(map(self._matches.get, running))

    def _is_matching(self, module: nn.Module) -> bool:
        found = self._matches.get(module)
        if found is None:
            for root in list(self._roots):  # a model may have got new modules
                self._name(root)
            if module not in self._matches:
                self._roots.add(module)
                self._name(module)
            found = self._matches[module]
        return found

    def _name(self, root: nn.Module) -> None:
        for name, module in root.named_modules():
            matching = [one for one in self._patterns if fnmatchcase(name, one)]
            self._matches[module] = self._matches.get(module, False) or bool(matching)
            for one in matching:
                self._unmet.pop(one, None)


def _tensors(values: object) -> list[Tensor]:
    return [one for one in pytree.tree_leaves(values) if isinstance(one, Tensor)]


def _nodes(last: list[Any], ends: set[Any]) -> Iterator[Any]:
    """Yield the nodes of autograd from results back to arguments and parameters."""
    waiting, seen = last, {*ends, None}
    while waiting:
        node = waiting.pop()
        if node not in seen and not node.name().endswith("AccumulateGrad"):
            seen.add(node)
            yield node
            waiting += [one for one, _ in node.next_functions]


SKIPPED_MODULES = SkippedModules()


@atexit.register
def _tell_unmet() -> None:
    for pattern in SKIPPED_MODULES.unmet():
        warn(f"kernel.skip_modules: {pattern!r} matched no module that was called")
