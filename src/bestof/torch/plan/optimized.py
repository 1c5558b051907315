"""`optimize`: a model as a fused inference plan."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from bestof.errors import InvalidArgument, TorchError
from bestof.torch.accuracy import Accuracy, parse_accuracy
from bestof.torch.plan.eager_run import described, eager_outputs
from bestof.torch.plan.explanation import Explanation, explain
from bestof.torch.plan.file import Planned, read_plan, write_plan
from bestof.torch.plan.fusion import drop_unread_attributes, fuse
from bestof.torch.plan.layouts import bring_into_rows
from bestof.torch.plan.memory import model_bytes, peak_of_values
from bestof.torch.plan.memory_limit import limit_memory
from bestof.torch.plan.model_state import ModelState
from bestof.torch.plan.mutation import AliasedMutation, refuse_state, remove_mutation
from bestof.torch.plan.program import Program
from bestof.torch.plan.release import release
from bestof.torch.plan.trace import trace, without_mutation
from bestof.torch.plan.tuning import return_freed_memory
from bestof.torch.plan.tuning import tune as tune_program
from bestof.torch.plan.verification import verify

# Shapes that stay planned; each has an arena for every thread that ran it at once.
_SHAPES = 8


class OptimizedModel(nn.Module):
    """A plan: called like the model that it was made from, for inference. Made by `optimize` or `load`.

    It has no parameters of its own, and no training mode; any number of threads may call it.
    """

    def __init__(
        self, model: nn.Module | None, accuracy: Accuracy, check_weights: bool = False
    ) -> None:
        super().__init__()
        self.accuracy = accuracy
        self.training = False
        self.pure = False
        # No submodule: its parameters are not the plan's. A list, for copies share it: released is released.
        self._original = [model]
        self._state = ModelState(model, check_weights)
        self._weights: dict[Any, Any] = {}
        self._programs: OrderedDict[Hashable, Planned] = OrderedDict()
        self._simple: dict[Hashable, tuple[Program, Any]] = {}
        self._lock = threading.RLock()
        self._family = WeakSet([self])  # with its copies, whose weights are the same

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these arguments.

        Shapes that are new are planned first, and their algorithms chosen on this and the next calls. Under autocast
        the model itself answers, and a loaded plan as without. TorchError where an input requires a gradient, lies on
        another device, or has a shape or dtype that the model does not take.
        """
        if torch.is_autocast_enabled("cpu"):
            model = self._original[0]
            if model is not None:
                return model(*args, **kwargs)
            with torch.autocast("cpu", enabled=False):
                return self.forward(*args, **kwargs)
        _refuse_tracing(args)
        self._state.check()
        program, structure = None, cast(Any, None)
        simple: Hashable = None
        if not kwargs and all(isinstance(one, Tensor) for one in args):
            # Nothing nests: 3 microseconds in place of 30 for flattening, and for hashing what it found.
            simple = (
                tuple((one.shape, one.stride(), one.dtype, one.device) for one in args),
                torch.get_num_threads(),
            )
            program, structure = self._simple.get(simple, (None, None))
        inputs: list[Tensor] = list(args)
        if program is None:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            program, structure = self.program(leaves, spec)
            if simple is not None:
                self._simple[simple] = program, structure
        if torch.is_grad_enabled() and any(one.requires_grad for one in inputs):
            raise TorchError(
                "optimize: a plan has no backward pass, and an input requires a gradient; call it under "
                "torch.no_grad(), or train the original model"
            )
        inputs = [
            one.resolve_conj().resolve_neg() if one.is_neg() or one.is_conj() else one
            for one in inputs
        ]
        with torch.no_grad():
            outputs = program.run(inputs)
        return outputs[0] if structure.is_leaf() else pytree.tree_unflatten(outputs, structure)

    def explain(self, *args: Any, repeats: int = 5, **kwargs: Any) -> Explanation:
        """Where the time goes for these arguments; without any, for values made up in the shapes planned last.

        Runs the plan `repeats` times, each step timed; the seconds are medians.
        """
        if args or kwargs:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            program, _ = self.program(leaves, spec)
            inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        else:
            if not self._programs:
                raise TorchError(
                    "explain: nothing has been planned yet; call it with arguments like the model's"
                )
            program = next(reversed(self._programs.values()))[2]
            inputs = program.made_up_inputs()
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return explain(program, inputs, repeats, model_bytes(self._original[0]))

    def check_weights(self) -> None:
        """Raise TorchError if a bit of the model's parameters and buffers has changed.

        This reads all of them. `optimize(..., check_weights=True)` does it at each call. A plan
        that was loaded or released has no model, and nothing to check.
        """
        self._state.check()
        self._state.check_bits()

    def release(self) -> OptimizedModel:
        """Let go of the model, and of every weight that the planned shapes keep in other layouts: the plan itself.

        Frees their memory once nobody else keeps the model. Afterwards it is as if loaded: it serves the shapes that
        were planned before, and no others, and under autocast it answers itself; but it cannot be saved. So it is
        with its copies. TorchError, and nothing is changed, where the algorithms for a planned shape are not chosen.
        """
        with self._lock:
            release(
                list(
                    {
                        id(one): one
                        for plan in self._family
                        for _, _, one, *_ in plan._programs.values()
                    }.values()
                )
            )
            self._original[0] = None
            self._state.forget()
            self._weights.clear()
        return_freed_memory()
        return self

    def save(self, file: str | Path | BinaryIO) -> None:
        """Write the plan to a file that `load` reads: for the shapes that were planned so far, and no others.

        TorchError where an operator, or a structure of inputs or outputs, has no name that another process knows.
        """
        with self._lock:
            planned = list(self._programs.values())
        write_plan(file, self.accuracy, planned)

    def program(self, leaves: list[Any], spec: Any) -> tuple[Program, Any]:
        """The program for inputs like these, planned where it is the first time, and how its outputs nest."""
        key = _key(leaves, spec)
        known = self._programs.get(key)
        if known is None:
            with self._lock:
                known = self._programs.get(key)
                if known is None:
                    with (
                        torch.inference_mode(False),
                        torch.no_grad(),
                        torch.autocast("cpu", enabled=False),
                    ):
                        known = self._plan(leaves, spec)
                    self.keep(known)
        return known[2], known[3]

    def keep(self, planned: Planned) -> None:
        """Remember a planned shape; the oldest leave where there are too many."""
        self._programs[_key(planned[0], planned[1], known=True)] = planned
        while len(self._programs) > _SHAPES:
            self._programs.popitem(last=False)
            self._simple = {}

    def _plan(self, leaves: list[Any], spec: Any) -> Planned:
        model = self._original[0]
        if model is None:
            if (other := self._for_other_threads(leaves, spec)) is not None:
                return other
            raise TorchError(
                f"optimize: got {described(leaves)}; this plan was loaded or released, and serves only inputs with "
                f"the types, shapes and strides that it was planned for ({self._planned_for()}): call the plan with "
                f"the others before saving or releasing it"
            )
        self._check_unchanged(model)
        traced = trace(model, leaves, spec, self._planned_for())
        eager_bytes = model_bytes(model) + peak_of_values(traced.graph.graph)
        try:
            changes_inputs = remove_mutation(traced.graph.graph)
        except AliasedMutation:
            if self.pure:
                raise TorchError(
                    "optimize: the model changes a view, perhaps of its inputs; a plan never does"
                ) from None
            traced, changes_inputs = without_mutation(trace(model, leaves, spec)), False
        if self.pure and changes_inputs:
            raise TorchError("optimize: the model changes its inputs, which a plan never does")
        refuse_state(traced.graph.graph)
        if self.accuracy != "exact":
            fuse(traced.graph, self._weights)
            bring_into_rows(traced.graph)
        drop_unread_attributes(traced.graph)
        program = Program(traced.graph, self.accuracy, eager_bytes)
        kept = [
            torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
            if isinstance(leaf, Tensor)
            else leaf
            for leaf in leaves
        ]
        return kept, spec, program, traced.structure

    def _planned_for(self) -> str:
        return "; ".join(described(known[0]) for known in self._programs.values())

    def _for_other_threads(self, leaves: list[Any], spec: Any) -> Planned | None:
        """The plan of a file for these inputs, which was bound to another number of threads."""
        wanted = _key(leaves, spec)[:2]
        for kept, kept_spec, program, structure in reversed(self._programs.values()):
            if _key(kept, kept_spec, known=True)[:2] == wanted:
                return kept, kept_spec, program.rebound(), structure
        return None

    def _check_unchanged(self, model: nn.Module) -> None:
        training = _training(model)
        if training is not None:
            raise TorchError(
                f"optimize: {training} is in training mode; call model.eval() first, a plan is for inference"
            )
        if not self._state.is_unchanged() or self._state.has_grown():
            raise TorchError(
                "optimize: parameters or buffers of the model were changed after the plan was made, which is frozen; a "
                "shape that is new to it cannot be planned: call optimize again"
            )

    def train(self, mode: bool = True) -> OptimizedModel:
        """A plan stays in evaluation mode: TorchError for training."""
        if mode:
            raise TorchError(
                "optimize: a plan has no training mode; train the original model, and optimise it again"
            )
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OptimizedModel:  # noqa: ARG002  # PyTorch's signature
        """A plan stays where it is: TorchError for another device or dtype."""
        probe = fn(torch.empty(0))
        if probe.dtype is not torch.float32 or probe.device.type != "cpu":
            raise TorchError(
                f"optimize: a plan is made for the CPU and the dtypes of its model, and cannot become {probe.dtype} on "
                f"{probe.device}; move the original model, and optimise it again"
            )
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedModel:
        """A plan of the same frozen weights, which nothing can tell apart."""
        other = OptimizedModel(self._original[0], self.accuracy)
        other.pure, other._state, other._weights = self.pure, self._state, self._weights
        other._original = self._original
        with self._lock:
            other._programs = OrderedDict(self._programs)
            other._family = self._family
            self._family.add(other)
        memo[id(self)] = other
        return other

    def __reduce__(self) -> Any:
        file = io.BytesIO()
        self.save(file)
        return _loads, (file.getvalue(),)


def optimize(
    model: nn.Module,
    example_inputs: Any,
    example_kwargs: dict[str, Any] | None = None,
    *,
    accuracy: Accuracy = "float32",
    tune: bool = True,
    pure: bool = False,
    memory: int | Literal["eager"] | None = None,
    check_weights: bool = False,
) -> OptimizedModel:
    """A module that computes what `model` does, for inference on the CPU, as a fused plan.

    model: in evaluation mode; it stays as it is, and shares the parameters that the plan does not transform. The plan
    is frozen: a parameter or buffer that is changed or replaced later is an error at the next call, not a new result.
    A write that PyTorch does not count (through `parameter.data` or NumPy) is noticed only with `check_weights`.
    example_inputs: a tensor, or the tuple of positional arguments. Other shapes are planned when they first come.
    accuracy: `exact` runs the model's own operators in their own layout; `float32` keeps within what float32 sums
    promise; `relaxed` allows Winograd's F(6), an rms error of 2.5e-5 a layer, and operands rounded to bfloat16 inside
    convolutions and linear layers, whose sums stay float32: by up to 2^-8 of each operand, which is the bound, and
    below 3e-3 of the rms of a layer's sums where it was measured, on operands at random and many results.
    tune: choose the algorithms now, on the example inputs; else on the first calls.
    pure: refuse a model that changes its inputs; else only the plan's outputs tell of such a change.
    memory: how many MiB the plan may take once it is released, or "eager" for no more than the model itself at its
    peak; where that is too few, as few as possible. None: what the fastest algorithms take, see `plan.explain()`.

    check_weights: at each call, read all parameters and buffers, and raise TorchError if a bit has changed.

    The outputs for the example inputs are compared with the model's before the plan is handed out. Raises TorchError
    where the model cannot be traced, does not run on the example inputs, or the outputs differ by more than rounding
    explains; InvalidArgument for arguments that cannot be used.
    """
    if not isinstance(model, nn.Module):
        raise InvalidArgument(
            f"optimize: model: expected a torch.nn.Module; got {type(model).__name__}"
        )
    parse_accuracy(accuracy, "optimize: accuracy")
    if not isinstance(example_inputs, Tensor | tuple | list):
        raise InvalidArgument(
            f"optimize: example_inputs: expected a tensor or a tuple of arguments; got {type(example_inputs).__name__}"
        )
    if memory not in (None, "eager") and (
        not isinstance(memory, int) or isinstance(memory, bool) or memory < 0
    ):
        raise InvalidArgument(
            f"optimize: memory: expected 'eager', a whole number of MiB, or None; got {memory!r}"
        )
    if memory is not None and not tune:
        raise InvalidArgument(
            "optimize: memory goes with tune=True: algorithms are weighed by the time that they took"
        )
    args = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    kwargs = dict(example_kwargs or {})
    if not isinstance(check_weights, bool):
        raise InvalidArgument(
            f"optimize: check_weights: expected True or False; got {check_weights!r}"
        )
    plan = OptimizedModel(model, accuracy, check_weights)
    plan.pure = pure
    plan._check_unchanged(model)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    if pure:
        plan.program(
            leaves, spec
        )  # before the model runs, which might change more than is known of it yet
    with torch.autocast("cpu", enabled=False):
        expected = eager_outputs(model, args, kwargs)
        program, _ = plan.program(leaves, spec)
        inputs = [
            leaf.detach().resolve_conj().resolve_neg()
            for leaf in leaves
            if isinstance(leaf, Tensor)
        ]
        if tune:
            tune_program(program, inputs)
        if memory is not None:
            assert program.eager_bytes is not None
            limit_memory(program, program.eager_bytes if memory == "eager" else memory << 20)
        verify(program, inputs, expected)
    return_freed_memory()
    return plan


def load(file: str | Path | BinaryIO) -> OptimizedModel:
    """The plan that `plan.save` wrote. No code is read from the file. TorchError for what is no plan, or damaged."""
    accuracy, planned = read_plan(file)
    plan = OptimizedModel(None, accuracy)
    for one in planned:
        plan.keep(one)
    return plan


def _loads(content: bytes) -> OptimizedModel:
    return load(io.BytesIO(content))


_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


def _refuse_tracing(args: tuple[Any, ...]) -> None:
    """Raise TorchError under what records or transforms operators: kernels are given addresses, which it cannot see."""
    under = None
    if torch._C._get_tracing_state() is not None:
        under = "torch.jit.trace"
    elif torch._C._functorch.peek_interpreter_stack() is not None:
        under = "a transform of torch.func"
    elif _is_being_traced() or any(isinstance(one, FakeTensor) for one in args):
        under = "make_fx or fake tensors"
    if under is not None:
        raise TorchError(
            f"optimize: a plan cannot run under {under}; trace or transform the original model"
        )


def _is_being_traced() -> bool:
    """Whether make_fx or torch.export follows this thread: PyTorch's get_proxy_mode also tells of other threads."""
    return torch._C._get_dispatch_mode(
        torch._C._TorchDispatchModeKey.PROXY
    ) is not None or torch._C._dispatch_tls_is_dispatch_key_included(
        torch._C.DispatchKey.PreDispatch
    )


def _key(leaves: list[Any], spec: Any, known: bool = False) -> tuple[Hashable, ...]:
    described: list[Hashable] = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            if leaf is not None and not isinstance(leaf, _PLAIN):
                raise TorchError(
                    f"optimize: an argument is a {type(leaf).__name__}; a plan takes tensors, numbers, texts, None, "
                    f"and tuples, lists and dicts of such"
                )
            described.append(
                (type(leaf), repr(leaf))
            )  # 2, 2.0 and True are equal, and nan is not even to itself
            continue
        if leaf.device.type != "cpu" and not known:
            raise TorchError(
                f"optimize: a plan runs on the CPU; got a tensor on {leaf.device}: move it, or the model"
            )
        strides = tuple(
            step if extent != 1 else 0
            for extent, step in zip(leaf.shape, leaf.stride(), strict=True)
        )
        described.append((leaf.shape, strides, leaf.dtype))
    return tuple(described), spec, torch.get_num_threads()


def _training(model: nn.Module) -> str | None:
    """The first module that is in training mode."""
    return next(
        (name or "the model" for name, module in model.named_modules() if module.training), None
    )
