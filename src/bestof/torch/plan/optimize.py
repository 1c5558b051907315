"""Make plans: from a model, or from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bestof.accuracy import Accuracy, parse_accuracy
from bestof.errors import InvalidArgument
from bestof.selection.state.lock import current_lock
from bestof.torch.engines.table import find_engines
from bestof.torch.plan.admission import SHAPES, Admission
from bestof.torch.plan.engine_model import EngineModel
from bestof.torch.plan.lengths import Lengths
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.padding import padding_of
from bestof.torch.rows.entry_points import load_entry_points

Memory = int | Literal["eager"] | None
Engines = Sequence[str] | Literal["installed"] | None


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
    shapes: int = SHAPES,
    lengths: Lengths | None = None,
    engines: Engines = None,
) -> OptimizedModel:
    """Return a module that computes what `model` does, for inference on the CPU, as a fused plan.

    model: in evaluation mode. It stays as it is, and shares the parameters that the plan does not
    transform. The plan is frozen: if a parameter or buffer is changed or replaced, the next call
    raises TorchError. A write that PyTorch does not count (through `parameter.data` or NumPy) is
    noticed only with `check_weights`.
    example_inputs: a tensor, or the tuple of positional arguments. The model itself answers other
    shapes until they come back; `plan.prepare` plans them at once.
    accuracy: `exact` runs the model's own operators in their own layout. `float32` keeps within the
    error of float32 sums. `relaxed` also allows Winograd's F(6), with an rms error of 2.5e-5 a
    layer, and operands rounded to bfloat16 inside layers: each by at most 2^-8 of itself; the rms
    error was below 3e-3 of the sums wherever it was measured, on random operands.
    tune: choose the algorithms now, on the example inputs; else in the first calls.
    pure: refuse a model that changes its inputs; else each call of the plan changes them too.
    memory: the MiB that the plan may take once it is released, or "eager" for no more than the
    model itself takes at its peak; if no plan takes so few, as few as possible. None: no limit.
    shapes: the most input shapes that stay planned, those of `prepare` included. The model answers
    all others.
    lengths: pad inputs to a few planned lengths, and cut the results; `plan.prepare()` plans all of
    them at once. The model must hide what is padded, for example by an attention mask; `optimize`
    tries this on the example. Not with the accuracy `exact`, because sums of other lengths have
    other bits.
    check_weights: at each call, read all parameters and buffers, and raise TorchError if a bit has
    changed.
    engines: measure whole engines beside the plan, each in a process of its own, and let the
    fastest answer: "installed" for all, or a list of "plan", "eager", "torch.compile",
    "torch.compile max-autotune", "openvino", "onnxruntime", "zentorch". The choice is made for each
    shape of the example and of `plan.prepare`, and kept in the store; `plan.explain()` tells it.
    None: the plan answers.

    The outputs for the example inputs are compared with the model's before the plan is returned. If
    these tell little, as NaN does, the outputs for other numbers are compared as well.
    TorchError if the model cannot be traced, does not run on the example inputs, or if outputs
    differ by more than rounding explains. InvalidArgument for arguments that cannot be used.
    """
    _check_arguments(model, example_inputs, accuracy, tune, memory, check_weights, shapes)
    _check_lengths(lengths, accuracy)
    load_entry_points()
    args = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    kwargs = dict(example_kwargs or {})
    if engines is None:
        plan = OptimizedModel(model, accuracy, check_weights)
    else:
        _check_measurable(accuracy, tune, memory)
        plan = EngineModel(model, accuracy, check_weights, find_engines(engines))
    plan.pure, plan.tunes, plan.memory = pure, tune, memory
    # A joined product copies weights that a limit may leave in the model's own memory.
    plan.joins = memory is None
    plan.admission = Admission(shapes if accuracy != "exact" else 2 * shapes)
    plan.check_unchanged(model)
    if lengths is None:
        plan.fix_all([pytree.tree_flatten((args, kwargs))])
    else:
        plan.pad(padding_of(model, lengths, args, kwargs), args, kwargs)
    return plan


def load(file: str | Path | BinaryIO) -> OptimizedModel:
    """Return the plan that `plan.save` wrote.

    No code is read from the file. TorchError for files that are no plans, or damaged.
    """
    load_entry_points()
    return OptimizedModel.from_file(file)


def _check_arguments(
    model: object,
    example_inputs: object,
    accuracy: str,
    tune: bool,
    memory: object,
    check_weights: object,
    shapes: object,
) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidArgument(
            f"optimize: model: expected a torch.nn.Module; got {type(model).__name__}"
        )
    parse_accuracy(accuracy, "optimize: accuracy")
    _check_device(model)
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
    if memory is not None and current_lock() is not None:
        raise InvalidArgument(
            "optimize: memory: algorithms are weighed by their measured times, and a locked run "
            "measures nothing; leave memory out, or load a saved plan"
        )
    if memory is not None and not tune:
        raise InvalidArgument(
            "optimize: memory needs tune=True: algorithms are weighed by their measured times"
        )
    if not isinstance(check_weights, bool):
        raise InvalidArgument(
            f"optimize: check_weights: expected True or False; got {check_weights!r}"
        )
    if not isinstance(shapes, int) or isinstance(shapes, bool) or shapes < 1:
        raise InvalidArgument(
            f"optimize: shapes: expected a whole number of at least 1; got {shapes!r}"
        )


def _check_measurable(accuracy: Accuracy, tune: bool, memory: object) -> None:
    """Raise InvalidArgument for arguments that do not go with engines."""
    if accuracy == "exact":
        raise InvalidArgument(
            "optimize: engines have other bits than the model; choose the accuracy 'float32' or "
            "'relaxed', or leave engines out"
        )
    if not tune or memory is not None:
        raise InvalidArgument(
            "optimize: engines are compared by their measured times: leave out tune=False and "
            "memory, or engines"
        )
    if current_lock() is not None:
        raise InvalidArgument(
            "optimize: engines are compared by their measured times, and a locked run measures "
            "nothing; leave engines out"
        )


def _check_device(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not tensor.is_cpu:
            raise InvalidArgument(
                f"optimize: a plan runs on the CPU; {name} of the model is on {tensor.device}: "
                f"move the model by model.cpu()"
            )


def _check_lengths(lengths: object, accuracy: str) -> None:
    if lengths is None:
        return
    if not isinstance(lengths, Lengths):
        raise InvalidArgument(
            f"optimize: lengths: expected bt.Lengths or None; got {type(lengths).__name__}"
        )
    if accuracy == "exact":
        raise InvalidArgument(
            "optimize: lengths need another accuracy than 'exact': sums of padded inputs have "
            "other bits"
        )
