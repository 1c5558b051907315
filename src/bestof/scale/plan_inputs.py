"""The inputs that a plan file serves, by their batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bestof.torch.plan.file.plan_file import read_plan
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run.program import Planned


def batches_of(file: str) -> tuple[list[int], str]:
    """Return the batches that a plan file serves, and one sample of the inputs as text.

    TorchError for files that are no plans. The batch is the first extent of the first tensor. If
    the plan was made for several kinds of samples, such as images of two sizes, the kind with the
    most batches counts.
    """
    kind, planned = _main_kind(read_plan(file).planned)
    return sorted(planned), kind


def load_for(file: str, batch: int) -> tuple[OptimizedModel, tuple[Any, ...], dict[str, Any]]:
    """Return the plan of a file, with arguments of this batch: random numbers, or zeros."""
    accuracy, planned, _ = read_plan(file)
    plan = OptimizedModel(None, accuracy)
    for one in planned:
        plan.keep(one, fixed=True)
    chosen = _main_kind(planned)[1][batch]
    args, kwargs = pytree.tree_unflatten([_made_up(leaf) for leaf in chosen.leaves], chosen.spec)
    return plan, args, kwargs


def is_settled(plan: OptimizedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the plan has chosen all algorithms for these arguments."""
    program, _ = plan.program(*pytree.tree_flatten((args, kwargs)))
    return all(choice.algorithm is not None for choice in program.choices.values())


def _main_kind(planned: Sequence[Planned]) -> tuple[str, dict[int, Planned]]:
    kinds: dict[str, dict[int, Planned]] = {}
    for one in planned:
        tensors = [leaf for leaf in one.leaves if isinstance(leaf, Tensor)]
        batch = next((tensor.shape[0] for tensor in tensors if tensor.dim()), 1)
        shown = [
            f"{str(tensor.dtype).removeprefix('torch.')} "
            f"({', '.join(str(extent) for extent in _sample(tensor, batch))})"
            for tensor in tensors
        ]
        kinds.setdefault(", ".join(shown), {})[batch] = one
    return max(kinds.items(), key=lambda kind: len(kind[1]))


def _sample(tensor: Tensor, batch: int) -> Sequence[int]:
    """Return the shape of one sample; that of the tensor if it has another first extent."""
    shape = list(tensor.shape)
    return shape[1:] if shape[:1] == [batch] else shape


def _made_up(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype)
    return made.normal_() if made.is_floating_point() else made.zero_()
