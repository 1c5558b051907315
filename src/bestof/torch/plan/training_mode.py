"""Whether a model is in training mode."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from bestof.errors import TorchError

# The arguments of operators that say whether they train: of dropout, and of batch norms.
_FLAGS = ("train", "training")


def refuse_training(model: nn.Module) -> None:
    """Raise TorchError if a module is in training mode. The message says how to leave this mode.

    A module of `torch.export` has no mode to switch: `eval` raises there, and `training` is True
    whatever was exported. Its operators tell in which mode the model was.
    """
    seen: set[int] = set()
    open_ = [("", model)]
    while open_:
        name, module = open_.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if is_exported(module):
            _refuse_trained_operators(name, module)
            continue  # its submodules hold the parameters, and do nothing
        if module.training:
            # `eval` of a model raises if one of its parts was exported.
            inside = any(is_exported(one) for one in module.modules())
            remedy = "set its `training` to False" if inside else "call model.eval() first"
            raise TorchError(
                f"optimize: {name or 'the model'} is in training mode; {remedy}, a plan is for "
                "inference"
            )
        children = reversed(list(module.named_children()))
        open_ += [(f"{name}.{child}" if name else child, one) for child, one in children]


def is_exported(module: nn.Module) -> bool:
    """Return whether `torch.export` made a module: such a module has an `eval` of its own."""
    return isinstance(module, GraphModule) and "eval" in vars(module)


def _refuse_trained_operators(name: str, module: Any) -> None:
    for node in module.graph.nodes:
        if _trains(node):
            raise TorchError(
                f"optimize: {name or 'the model'} was exported in training mode ({node.target}); "
                "call model.eval() before torch.export.export, a plan is for inference"
            )


def _trains(node: Node) -> bool:
    """Return whether an operator draws random numbers, or uses the statistics of its batch.

    A norm without running statistics always does the latter.
    """
    schema: Any = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    given = {one.name: value for one, value in zip(schema.arguments, node.args, strict=False)}
    given |= node.kwargs
    if given.get("dropout_p"):
        return True
    flagged = any(given.get(flag) is True for flag in _FLAGS)
    return flagged and ("running_mean" not in given or given["running_mean"] is not None)
