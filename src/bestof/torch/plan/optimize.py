"""Make plans: from a model, or from a file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bestof.accuracy import Accuracy, parse_accuracy
from bestof.errors import InvalidArgument
from bestof.torch.plan.eager_run import eager_outputs
from bestof.torch.plan.memory_limit import limit_memory
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.program import Program
from bestof.torch.plan.tuning import return_freed_memory
from bestof.torch.plan.tuning import tune as tune_program
from bestof.torch.plan.verification import verify_examples

Memory = int | Literal["eager"] | None


def optimize(
    model: nn.Module,
    example_inputs: Any,
    example_kwargs: dict[str, Any] | None = None,
    *,
    accuracy: Accuracy = "float32",
    tune: bool = True,
    pure: bool = False,
    memory: Memory = None,
    check_weights: bool = False,
) -> OptimizedModel:
    """Return a module that computes what `model` does, for inference on the CPU, as a fused plan.

    model: in evaluation mode. It stays as it is, and shares the parameters that the plan does not
    transform. The plan is frozen: if a parameter or buffer is changed or replaced, the next call
    raises TorchError. A write that PyTorch does not count (through `parameter.data` or NumPy) is
    noticed only with `check_weights`.
    example_inputs: a tensor, or the tuple of positional arguments. Other shapes are planned when
    they first come.
    accuracy: `exact` runs the model's own operators in their own layout. `float32` keeps within the
    error of float32 sums. `relaxed` also allows Winograd's F(6), with an rms error of 2.5e-5 a
    layer, and operands rounded to bfloat16 inside layers: each by at most 2^-8 of itself; the rms
    error was below 3e-3 of the sums wherever it was measured, on random operands.
    tune: choose the algorithms now, on the example inputs; else in the first calls.
    pure: refuse a model that changes its inputs; else each call of the plan changes them too.
    memory: the MiB that the plan may take once it is released, or "eager" for no more than the
    model itself takes at its peak; as few as possible if that is too few. None: no limit.
    check_weights: at each call, read all parameters and buffers, and raise TorchError if a bit has
    changed.

    The outputs for the example inputs are compared with the model's before the plan is returned. If
    these tell little, as NaN does, the outputs for other numbers are compared as well.
    TorchError if the model cannot be traced, does not run on the example inputs, or if outputs
    differ by more than rounding explains. InvalidArgument for arguments that cannot be used.
    """
    _check_arguments(model, example_inputs, accuracy, tune, memory, check_weights)
    args = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    kwargs = dict(example_kwargs or {})
    plan = OptimizedModel(model, accuracy, check_weights)
    plan.pure = pure
    # A joined product copies weights that a limit may leave in the model's own memory.
    plan.joins = memory is None
    plan.check_unchanged(model)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    if pure:
        # Before the model runs, which might change more than is known of it yet.
        plan.program(leaves, spec)
    with torch.autocast("cpu", enabled=False):
        expected, changed = eager_outputs(model, args, kwargs)
        program, _ = plan.program(leaves, spec)
        tensors = (leaf for leaf in leaves if isinstance(leaf, Tensor))
        inputs = [one.detach().resolve_conj().resolve_neg() for one in tensors]
        if tune:
            tune_program(program, inputs)
        if memory is not None:
            limit_memory(program, _limit(program, memory))
        run = partial(_eager, model, leaves, spec)
        verify_examples(program, inputs, (expected, changed), run)
    return_freed_memory()
    return plan


def _eager(
    model: nn.Module, leaves: list[Any], spec: Any, inputs: Sequence[Tensor]
) -> tuple[list[Any], list[Tensor]]:
    """Return what the model computes, and makes of its inputs, for other tensors."""
    rest = iter(inputs)
    given = [next(rest) if isinstance(one, Tensor) else one for one in leaves]
    args, kwargs = pytree.tree_unflatten(given, spec)
    return eager_outputs(model, args, kwargs)


def load(file: str | Path | BinaryIO) -> OptimizedModel:
    """Return the plan that `plan.save` wrote.

    No code is read from the file. TorchError for files that are no plans, or damaged.
    """
    return OptimizedModel.from_file(file)


def _limit(program: Program, memory: int | Literal["eager"]) -> int:
    if memory != "eager":
        return memory << 20
    assert program.eager_bytes is not None
    return program.eager_bytes


def _check_arguments(
    model: object,
    example_inputs: object,
    accuracy: str,
    tune: bool,
    memory: object,
    check_weights: object,
) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidArgument(
            f"optimize: model: expected a torch.nn.Module; got {type(model).__name__}"
        )
    parse_accuracy(accuracy, "optimize: accuracy")
    if not isinstance(example_inputs, Tensor | tuple | list):
        raise InvalidArgument(
            f"optimize: example_inputs: expected a tensor or a tuple of arguments; got "
            f"{type(example_inputs).__name__}"
        )
    whole = isinstance(memory, int) and not isinstance(memory, bool) and memory >= 0
    if memory not in (None, "eager") and not whole:
        raise InvalidArgument(
            f"optimize: memory: expected 'eager', a whole number of MiB, or None; got {memory!r}"
        )
    if memory is not None and not tune:
        raise InvalidArgument(
            "optimize: memory needs tune=True: algorithms are weighed by their measured times"
        )
    if not isinstance(check_weights, bool):
        raise InvalidArgument(
            f"optimize: check_weights: expected True or False; got {check_weights!r}"
        )
