"""Plans as modules."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, BinaryIO, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bestof.accuracy import Accuracy
from bestof.errors import TorchError
from bestof.torch.plan.eager_run import described
from bestof.torch.plan.explanation import Explanation, explain
from bestof.torch.plan.file import read_plan, write_plan
from bestof.torch.plan.fork_lock import ForkLock
from bestof.torch.plan.inputs import key_of, refuse_tracing
from bestof.torch.plan.memory import model_bytes
from bestof.torch.plan.model_state import ModelState
from bestof.torch.plan.planned import Planned
from bestof.torch.plan.planning import plan_inputs
from bestof.torch.plan.program import Program
from bestof.torch.plan.release import release
from bestof.torch.plan.training_mode import refuse_training
from bestof.torch.plan.tuning import return_freed_memory

# Shapes that stay planned; each has an arena for every thread that ran it at once.
_SHAPES = 8

# Calls whose program is known at once. One program serves any strides of an axis of extent 1, so
# that the calls of eight programs have no bound.
_CALLS = 64


class OptimizedModel(nn.Module):
    """A plan: a module that computes what a model does, for inference on the CPU.

    `optimize` makes it from a model, `load` from a file. It plans each new set of input shapes at
    the first call, and keeps the last eight as `Program`s, which share their weights. It is frozen:
    it checks at each call that the model's parameters are as they were. After `release` it keeps
    neither the model nor weights that it reads in other layouts. It has no parameters of its own
    and no training mode. Any number of threads may call it.
    """

    def __init__(
        self, model: nn.Module | None, accuracy: Accuracy, check_weights: bool = False
    ) -> None:
        super().__init__()
        self.accuracy = accuracy
        self.training = False
        self.pure = False
        self.joins = True
        # Not a submodule: its parameters are not the plan's. A list, which copies share: if one
        # copy is released, all are.
        self._original = [model]
        self._state = ModelState(model, check_weights)
        self._weights: dict[Any, Any] = {}
        self._programs: OrderedDict[Hashable, Planned] = OrderedDict()
        self._simple: dict[Hashable, tuple[Program, Any]] = {}
        self._lock = ForkLock()
        self._family = WeakSet([self])  # with its copies, whose weights are the same

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns for these arguments.

        New shapes are planned first, and their algorithms chosen in this and the next calls. Under
        autocast the model itself answers; a plan that was loaded answers as without autocast.
        If the model changes an input in place, so does the plan. TorchError, before anything is
        changed, if an input requires a gradient, lies on another device, has a shape or dtype that
        the model refuses, or is changed and shares memory with another.
        """
        if torch.is_autocast_enabled("cpu"):
            model = self._original[0]
            if model is not None:
                return model(*args, **kwargs)
            with torch.autocast("cpu", enabled=False):
                return self.forward(*args, **kwargs)
        refuse_tracing(args)
        self._state.check()
        program, structure = None, cast(Any, None)
        simple: Hashable = None
        if not kwargs and all(isinstance(one, Tensor) for one in args):
            # Nothing nests: this key takes 3 us; flattening, and hashing the result, takes 30.
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
                if len(self._simple) >= _CALLS:
                    self._simple = {}
                self._simple[simple] = program, structure
        if torch.is_grad_enabled() and any(one.requires_grad for one in inputs):
            raise TorchError(
                "optimize: a plan has no backward pass, and an input requires a gradient; call it "
                "under torch.no_grad(), or train the original model"
            )
        program.changed.check(inputs)
        inputs = [
            one.resolve_conj().resolve_neg() if one.is_neg() or one.is_conj() else one
            for one in inputs
        ]
        with torch.no_grad():
            outputs = program.run(inputs)
        return outputs[0] if structure.is_leaf() else pytree.tree_unflatten(outputs, structure)

    def explain(self, *args: Any, repeats: int = 5, **kwargs: Any) -> Explanation:
        """Return where the time goes for these arguments.

        Without arguments, the values are made up, in the shapes planned last. The plan runs
        `repeats` times, each step timed; the seconds are medians.
        """
        if args or kwargs:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            program, _ = self.program(leaves, spec)
            inputs = program.changed.copied([leaf for leaf in leaves if isinstance(leaf, Tensor)])
        else:
            if not self._programs:
                raise TorchError(
                    "explain: nothing has been planned yet; call it with arguments like the model's"
                )
            program = next(reversed(self._programs.values()))[2]
            inputs = program.made_up_inputs()
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return explain(program, inputs, repeats, model_bytes(self._original[0]))

    def is_current(self) -> bool:
        """Return whether the model's parameters, buffers and modules are as they were."""
        return self._state.is_unchanged()

    def check_weights(self) -> None:
        """Raise TorchError if a bit of the model's parameters and buffers has changed.

        This reads all of them. `optimize(..., check_weights=True)` does it at each call. A plan
        that was loaded or released has no model, and nothing to check.
        """
        self._state.check()
        self._state.check_bits()

    def release(self) -> OptimizedModel:
        """Drop the model, and the weights that are read in other layouts; return the plan.

        Their memory is freed unless something else keeps the model. Afterwards the plan, like a
        loaded one, serves only the shapes planned before, and answers itself under autocast. It
        cannot be saved. The same holds for its copies. TorchError, and nothing is changed, if the
        algorithms for a planned shape are not chosen yet.
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
        """Write the shapes that were planned so far to a file that `load` reads.

        TorchError if the file cannot name an operator, or how inputs or outputs nest.
        """
        with self._lock:
            planned = list(self._programs.values())
        write_plan(file, self.accuracy, planned)

    def program(self, leaves: list[Any], spec: Any) -> tuple[Program, Any]:
        """Return the program for inputs like these, and how its outputs nest; plan new inputs."""
        key = key_of(leaves, spec)
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
        """Keep a planned shape; drop the oldest beyond eight."""
        self._programs[key_of(planned[0], planned[1], known=True)] = planned
        while len(self._programs) > _SHAPES:
            self._programs.popitem(last=False)
            self._simple = {}

    def _plan(self, leaves: list[Any], spec: Any) -> Planned:
        model = self._original[0]
        if model is not None:
            self.check_unchanged(model)
            known = self._planned_for()
            return plan_inputs(
                *(model, leaves, spec, self._weights, self.accuracy),
                pure=self.pure,
                known=known,
                joins=self.joins,
            )
        other = self._for_other_threads(leaves, spec)
        if other is None:
            raise TorchError(
                f"optimize: got {described(leaves)}; this plan was loaded or released, and serves "
                "only inputs with the types, shapes and strides that it was planned for "
                f"({self._planned_for()}): call the plan with the others before saving or "
                "releasing it"
            )
        return other

    def _planned_for(self) -> str:
        return "; ".join(described(known[0]) for known in self._programs.values())

    def _for_other_threads(self, leaves: list[Any], spec: Any) -> Planned | None:
        """Return a plan for these inputs that was made for another number of threads."""
        wanted = key_of(leaves, spec)[:2]
        for known in reversed(self._programs.values()):
            if key_of(known.leaves, known.spec, known=True)[:2] == wanted:
                return known._replace(program=known.program.rebound())
        return None

    def check_unchanged(self, model: nn.Module) -> None:
        """Raise TorchError if the model cannot be planned: in training mode, or changed since."""
        refuse_training(model)
        if not self._state.is_unchanged() or self._state.is_rebuilt():
            raise TorchError(
                "optimize: parameters, buffers or modules of the model were changed after the "
                "plan was made, which is frozen; a shape that is new to it cannot be planned: "
                "call optimize again"
            )

    def train(self, mode: bool = True) -> OptimizedModel:
        """Return the plan in evaluation mode; TorchError for training."""
        if mode:
            raise TorchError(
                "optimize: a plan has no training mode; train the original model, and optimise it "
                "again"
            )
        return self

    def _apply(
        self,
        fn: Callable[[Tensor], Tensor],
        recurse: bool = True,  # noqa: ARG002  # PyTorch's signature
    ) -> OptimizedModel:
        """Return the plan as it is; TorchError for another device or dtype."""
        probe = fn(torch.empty(0))
        if probe.dtype is not torch.float32 or probe.device.type != "cpu":
            raise TorchError(
                "optimize: a plan is made for the CPU and the dtypes of its model, and cannot "
                f"become {probe.dtype} on "
                f"{probe.device}; move the original model, and optimise it again"
            )
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedModel:
        """Return a plan that shares the model, the weights and the programs."""
        other = OptimizedModel(None, self.accuracy)
        other.pure, other.joins = self.pure, self.joins
        other._state, other._weights = self._state, self._weights
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
        return OptimizedModel._from_bytes, (file.getvalue(),)

    @classmethod
    def from_file(cls, file: str | Path | BinaryIO) -> OptimizedModel:
        """Return the plan of a file; see `load`."""
        accuracy, planned = read_plan(file)
        plan = cls(None, accuracy)
        for one in planned:
            plan.keep(one)
        return plan

    @classmethod
    def _from_bytes(cls, content: bytes) -> OptimizedModel:
        return cls.from_file(io.BytesIO(content))
