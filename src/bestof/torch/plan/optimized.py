"""`optimize`: a model as a fused inference plan."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bestof.errors import InvalidArgument, TorchError
from bestof.torch.plan.explanation import Explanation, explain
from bestof.torch.plan.fusion import fuse
from bestof.torch.plan.mutation import AliasedMutation, remove_mutation
from bestof.torch.plan.program import Program
from bestof.torch.plan.selection import Accuracy
from bestof.torch.plan.trace import trace, without_mutation
from bestof.torch.plan.tuning import tune as tune_program
from bestof.torch.plan.verification import verify
from bestof.torch.plan.writing import bring_into_rows

# Shapes that stay planned; each has an arena for every thread that ran it at once.
_SHAPES = 8


class OptimizedModel(nn.Module):
    """A plan: called like the model that it was made from, for inference. Made by `optimize`."""

    def __init__(self, model: nn.Module, accuracy: Accuracy) -> None:
        super().__init__()
        self.accuracy = accuracy
        self.training = False
        self._original = (model,)  # no submodule: its parameters are not the plan's
        self._weights: dict[Any, Any] = {}
        self._programs: OrderedDict[Hashable, tuple[Program, Any]] = OrderedDict()
        self._lock = threading.RLock()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these arguments. TorchError where a gradient is asked for."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if torch.is_autocast_enabled("cpu"):
            return self._original[0](*args, **kwargs)
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if torch.is_grad_enabled() and any(one.requires_grad for one in inputs):
            raise TorchError(
                "optimize: a plan has no backward pass, and an input requires a gradient; call it under "
                "torch.no_grad(), or train the original model"
            )
        program, structure = self.program(leaves, spec)
        with torch.no_grad():
            outputs = program.run(inputs)
        return pytree.tree_unflatten(outputs, structure)

    def program(self, leaves: list[Any], spec: Any) -> tuple[Program, Any]:
        """The program for inputs like these, planned where it is the first time, and how its outputs nest."""
        key = _key(leaves, spec)
        known = self._programs.get(key)
        if known is None:
            with self._lock:
                known = self._programs.get(key)
                if known is None:
                    known = self._plan(leaves, spec)
                    self._programs[key] = known
                    while len(self._programs) > _SHAPES:
                        self._programs.popitem(last=False)
        return known

    def explain(self, *args: Any, repeats: int = 5, **kwargs: Any) -> Explanation:
        """Where the time goes for these arguments; without any, for values made up in the shapes planned last.

        Runs the plan `repeats` times, each step timed; the seconds are medians.
        """
        if args or kwargs:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            program, _ = self.program(leaves, spec)
            inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        else:
            program, _ = next(reversed(self._programs.values()))
            inputs = program.made_up_inputs()
        with torch.no_grad():
            return explain(program, inputs, repeats)

    def _plan(self, leaves: list[Any], spec: Any) -> tuple[Program, Any]:
        traced = trace(self._original[0], leaves, spec)
        try:
            remove_mutation(traced.graph.graph)
        except AliasedMutation:
            traced = without_mutation(trace(self._original[0], leaves, spec))
        if self.accuracy != "exact":
            fuse(traced.graph, self._weights)
            bring_into_rows(traced.graph)
        return Program(traced.graph, self.accuracy), traced.structure


def optimize(
    model: nn.Module,
    example_inputs: Any,
    example_kwargs: dict[str, Any] | None = None,
    *,
    accuracy: Accuracy = "float32",
    tune: bool = True,
) -> OptimizedModel:
    """A module that computes what `model` does, for inference on the CPU, as a fused plan.

    example_inputs: a tensor, or the tuple of arguments; other shapes are planned when they first come.
    """
    if accuracy not in get_args(Accuracy):
        raise InvalidArgument(f"optimize: accuracy: expected one of {', '.join(get_args(Accuracy))}; got {accuracy!r}")
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"optimize: model: expected a torch.nn.Module; got {type(model).__name__}")
    args = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    training = next((name or "the model" for name, module in model.named_modules() if module.training), None)
    if training is not None:
        raise TorchError(f"optimize: {training} is in training mode; call model.eval() first, a plan is for inference")
    leaves, spec = pytree.tree_flatten((args, example_kwargs or {}))
    plan = OptimizedModel(model, accuracy)
    program, _ = plan.program(leaves, spec)
    inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if tune:
        tune_program(program, inputs)
    with torch.no_grad():
        verify(program, inputs, lambda: pytree.tree_leaves(model(*args, **(example_kwargs or {}))))
    return plan


def _key(leaves: list[Any], spec: Any) -> Hashable:
    described = tuple(
        (leaf.shape, leaf.stride(), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves
    )
    return described, spec, torch.get_num_threads()
