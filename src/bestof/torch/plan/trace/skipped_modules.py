"""Marks the operators of modules that the configuration leaves to PyTorch, in a trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.fx import Graph, Node
from torch.fx.traceback import annotate

from bestof.selection.notice import warn
from bestof.torch.rows.offer import skipped

_MARK = "bestof: skipped"


def mark_skipped(twin: nn.Module) -> None:
    """Let modules that `kernel.skip_modules` names mark the nodes of their calls.

    twin: a copy of a model, whose methods may be replaced. A hook would be simpler, but PyTorch's
    layers of transformers leave their fast path where they find one.
    """
    modules = dict(twin.named_modules())
    for name in skipped(modules):
        modules[name].forward = partial(_marking, modules[name].forward)


def _marking(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with annotate({_MARK: True}):
        return forward(*args, **kwargs)


def is_of_skipped(node: Node) -> bool:
    """Return whether a node was traced in a call of a module that is left to PyTorch."""
    return _MARK in node.meta.get("custom", ())


def tell_unmarked(graph: Graph, model: nn.Module) -> None:
    """Warn if the configuration names modules of a model, and no node of its trace is of one."""
    names = skipped(name for name, _ in model.named_modules())
    if names and not any(map(is_of_skipped, graph.nodes)):
        more = f", and {len(names) - 1} more" if len(names) > 1 else ""
        warn(
            f"optimize: kernel.skip_modules leaves {names[0]!r}{more} of {type(model).__name__} to "
            "PyTorch, but the trace of the model has no call of it, so the plan leaves nothing to "
            "PyTorch; optimise the parts of the model around it, or pass accuracy='exact', which "
            "runs PyTorch's own operators"
        )
