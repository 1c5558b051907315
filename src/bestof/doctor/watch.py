"""Watches a program: its optimizers, loaders, shapes, types, and denormal numbers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from bestof.doctor.seen import Call, Seen

_LOOKED_AT = 1 << 16
"""So many elements of a tensor are searched for denormals."""

_SEARCHED = 2
"""The results of so many calls are searched, and the parameters before so many steps.

Steps are not timed so early.
"""


class Watch:
    """Fills `seen` while the program runs, in the thread that made it."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._thread = threading.get_ident()
        self._depth = 0
        self._began = 0.0
        self._shapes: set[tuple[Any, ...]] = set()
        self._searched = 0  # calls
        self._stepped = 0

    def start(self) -> None:
        """Watch from now on, until the process ends."""
        register_module_forward_pre_hook(self._before)
        # Hooks before a call see no keyword arguments, by which models of transformers are called.
        register_module_forward_hook(self._after, with_kwargs=True, always_call=True)
        register_optimizer_step_pre_hook(self._stepping)
        fetch = dataloader._BaseDataLoaderIter.__next__
        seen = self._seen

        def timed(iterator: Any) -> Any:
            began = perf_counter()
            try:
                return fetch(iterator)
            finally:
                seen.waited += perf_counter() - began
                seen.workers = max(seen.workers, getattr(iterator, "_num_workers", 0))

        dataloader._BaseDataLoaderIter.__next__ = timed  # type: ignore[assignment, method-assign]

    def _looks(self) -> bool:
        # While a graph is compiled, `get_ident` and what follows would break the graph.
        return not torch.compiler.is_compiling() and threading.get_ident() == self._thread

    def _before(self, _module: nn.Module, _arguments: object) -> None:
        if not self._looks():
            return
        if self._depth == 0:
            if torch.is_autocast_enabled("cpu"):
                self._seen.dtypes[str(torch.get_autocast_dtype("cpu"))] += 1
            self._began = perf_counter()
        self._depth += 1

    def _after(self, module: nn.Module, *told: object) -> None:
        """Note a call. told: its arguments, keyword arguments unless it has failed, its result."""
        if not self._looks():
            return
        self._depth = max(0, self._depth - 1)
        *arguments, result = told
        if self._depth == 0:
            self._note_call(arguments, perf_counter() - self._began)
        if self._searched < _SEARCHED:
            for one in tree_leaves(result):
                self._search(one)
        if self._depth:
            return
        self._searched += 1
        if self._searched == 1:
            self._seen.dtypes.update(str(one.dtype) for one in module.parameters())

    def _note_call(self, arguments: Sequence[object], seconds: float) -> None:
        key: tuple[Any, ...] = ()
        with suppress(Exception):  # such as of a nested tensor, which has no shape
            tensors = [one for one in tree_leaves(arguments) if isinstance(one, Tensor)]
            self._seen.dtypes.update(str(one.dtype) for one in tensors)
            key = tuple(tuple(one.shape) for one in tensors)
        elements = sum(torch.Size(shape).numel() for shape in key)
        self._seen.calls.append(Call(key not in self._shapes, elements, seconds))
        self._shapes.add(key)

    def _stepping(self, optimizer: Optimizer, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        if all(one is not optimizer for one in self._seen.optimizers):
            self._seen.optimizers.append(optimizer)
            self._seen.dtypes.update(str(one.dtype) for one in parameters)
        if self._stepped < _SEARCHED:
            self._stepped += 1
            for one in parameters:
                self._search(one)
                self._search(one.grad)

    def _search(self, value: object) -> None:
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return
        with suppress(Exception):  # such as of a sparse tensor, or below `torch.func.vmap`
            if value.device.type != "cpu" or not value.numel():
                return
            sizes = value.detach().reshape(-1)[:_LOOKED_AT].abs()
            small = (sizes > 0) & (sizes < torch.finfo(torch.float32).tiny)
            denormals = int(small.count_nonzero())
            self._seen.sampled += sizes.numel()
            self._seen.denormals += denormals
