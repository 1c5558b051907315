"""Puts shims in front of PyTorch's operators, if this PyTorch takes kernels in C++."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch

from bestof.selection.state.registry import Defaults
from bestof.torch.backends.shim import (
    OperatorShim,
    find_gradients,
    find_registration,
    handle_conversions,
    make_operator_shim,
    pytorch_libraries,
)
from bestof.torch.dispatch import probe
from bestof.torch.ops.pytorch_kernel import entry_of
from bestof.torch.process.openmp import on_threads


class Answered(Protocol):
    """What a shim asks of an operation; see `ops/operation.py`."""

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators of PyTorch."""

    @property
    def rule(self) -> str:
        """The rule by which calls are chosen for; see native/torch/rules.h."""

    @property
    def least(self) -> float:
        """The work from which on calls are chosen for."""


@cache
def objection() -> str | None:
    """Return why this PyTorch takes no kernels in C++ for operators, None if it does.

    The first question tries it, in a process that has no such kernels yet; see `probe.py`.
    """
    if not torch.__version__.startswith(probe.TESTED):
        said = probe.said_by_child()
        if said is not None:
            return said
    # A program that forks workers after `enable` then has no threads of OpenMP, as without bestof:
    # Python 3.12 warns of them. No thread of its own: `import torch` may wait for this trial.
    with on_threads(1):
        return try_registration()


def try_registration() -> str | None:
    """Return the same of a trial in this process, whatever its release."""
    conversions = handle_conversions()
    if conversions is None or not any(map(find_registration, pytorch_libraries())):
        return "it lacks the functions that register them"
    if not any(map(find_gradients, pytorch_libraries())):
        return "it does not tell whether a gradient is computed"
    return probe.try_all(conversions)


def make_operators(
    operation: Answered,
    answer: Callable[..., Any],
    kernels: list[Any],
    waiting: dict[Any, Any] | None = None,
) -> OperatorShim | None:
    """Return a shim that asks `answer` for calls of an operation that it does not know.

    `kernels` are PyTorch's own, from torch.library.get_kernel, in the order of the operators. The
    shim asks about every call that records gradients while `waiting` is not empty.
    Returns None if this release of PyTorch lacks the functions that register C++ kernels, if
    another library has replaced one of PyTorch's kernels, or if an operator takes other arguments
    than tensors, numbers, truth values, texts and lists of them.
    """
    conversions = handle_conversions()
    if conversions is None or objection() is not None:
        return None
    entries = [entry_of(name) for name in operation.operators]
    if None in entries:
        return None
    return make_operator_shim(
        *conversions,
        answer,
        entries,  # type: ignore[arg-type]  # none of them is None
        kernels,
        operation.rule,
        operation.least,
        {} if waiting is None else waiting,
        Defaults.first_only,
    )
