"""Plans as modules."""

from __future__ import annotations

import copy
import io
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO, Literal, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bestof.accuracy import Accuracy
from bestof.entries import entries
from bestof.errors import BestofWarning, InvalidArgument, TorchError
from bestof.html_table import html_table
from bestof.selection.state.lock import current_lock
from bestof.torch.plan.admission import SHAPES, Admission
from bestof.torch.plan.explanation import Explanation, explain
from bestof.torch.plan.file.plan_file import read_plan, write_plan
from bestof.torch.plan.inputs import key_of, refuse_tracing
from bestof.torch.plan.model_state import ModelState
from bestof.torch.plan.padding import Padding
from bestof.torch.plan.planning import plan_inputs
from bestof.torch.plan.preparation import inputs_of
from bestof.torch.plan.run.memory_limit import limit_memory
from bestof.torch.plan.run.program import FAILURES, Planned, Program
from bestof.torch.plan.run.release import release
from bestof.torch.plan.run.tuning import return_freed_memory, tune
from bestof.torch.plan.trace.eager_run import described, eager_outputs, first_line
from bestof.torch.plan.trace.twin import Twins
from bestof.torch.plan.training_mode import refuse_training
from bestof.torch.plan.verify.verification import verify_examples
from bestof.torch.process.fork_lock import ForkLock
from bestof.torch.process.neighbours import NEIGHBOURS

# Calls whose program is known at once. One program serves any strides of an axis of extent 1, so
# that the calls of eight programs have no bound.
_CALLS = 64


class OptimizedModel(nn.Module):
    """A plan: a module that computes what a model does, for inference on the CPU.

    `optimize` makes a plan from a model, `load` from a file. A plan keeps a `Program` for each set
    of input shapes that it has planned; all share their weights. `Admission` decides which shapes
    those are: the model itself answers others. Shapes of the example, of `prepare` and of a file
    are `fixed`, and stay. The plan is frozen: each call checks that the model's parameters are as
    they were. After `release` the plan keeps neither the model nor weights that it reads in other
    layouts. A plan has no parameters of its own and no training mode. Any number of threads may
    call it.
    """

    def __init__(
        self, model: nn.Module | None, accuracy: Accuracy, check_weights: bool = False
    ) -> None:
        super().__init__()
        self.accuracy = accuracy
        self.training = False
        self.pure = False
        self.joins = True
        self.tunes = True
        self.memory: int | Literal["eager"] | None = None
        self.padding: Padding | None = None
        # Not a submodule: its parameters are not the plan's. A list, which copies share: if one
        # copy is released, all are.
        self._original = [model]
        self._state = ModelState(model, check_weights)
        self._weights: dict[Any, Any] = {}
        self._twins = Twins()
        self._programs: OrderedDict[tuple[Hashable, ...], Planned] = OrderedDict()
        self._fixed: set[Hashable] = set()
        self._example: tuple[list[Any], Any] | None = None
        self._sample: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # if lengths are padded
        self.admission = Admission()
        self._book = ForkLock()  # of the admission; held for a moment only
        self._warned = False
        # Operators that run with gradients on may have other bits than without.
        is_exact = accuracy == "exact"
        self._mode: Callable[[], Hashable] = (
            _threads_and_grad if is_exact else torch.get_num_threads
        )
        self._without_grad: Callable[[], Any] = nullcontext if is_exact else torch.no_grad
        self._simple: dict[Hashable, tuple[Program, Any]] = {}
        self._lock = ForkLock()
        self._family = WeakSet([self])  # with its copies, whose weights are the same
        NEIGHBOURS.watch_while_alive(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns for these arguments.

        The model itself answers a shape that is not planned. If the shape comes back, the plan
        learns it, and chooses its algorithms in this and the next calls; `prepare` does so at once.
        Under autocast the model answers too; a plan that was loaded answers as without autocast.
        If the model changes an input in place, so does the plan. Inputs of `Lengths` are padded to
        the next planned length, and the results are cut. TorchError, before anything is
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
        given, length = (args, kwargs), None
        if self.padding is not None:
            args, kwargs, length = self.padding.apply(args, kwargs)
        program, structure = None, cast(Any, None)
        simple: Hashable = None
        if not kwargs and all(isinstance(one, Tensor) for one in args) and not self._repeats(args):
            # Nothing nests: this key takes 3 us; flattening, and hashing the result, takes 30.
            simple = (
                tuple((one.shape, one.stride(), one.dtype, one.device) for one in args),
                self._mode(),
            )
            program, structure = self._simple.get(simple, (None, None))
        inputs: list[Tensor] = list(args)
        if program is None:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            known = self._known(leaves, spec)
            if known is None:
                return self._by_model(*given, leaves, spec)
            program, structure = known.program, known.structure
            if simple is not None:
                if len(self._simple) >= _CALLS:
                    self._simple = {}
                self._simple[simple] = program, structure
        refuse_gradients(inputs)
        program.changed.check(inputs)
        inputs = [
            one.resolve_conj().resolve_neg() if one.is_neg() or one.is_conj() else one
            for one in inputs
        ]
        with self._without_grad():
            outputs = program.run(inputs)
        if length is not None:
            outputs = cast(Padding, self.padding).cut(outputs, length)
        return outputs[0] if structure.is_leaf() else pytree.tree_unflatten(outputs, structure)

    def explain(self, *args: Any, repeats: int = 5, **kwargs: Any) -> Explanation:
        """Return where the time goes for these arguments.

        Without arguments, the values are made up, in the shapes planned last. The plan runs
        `repeats` times, each step timed; the seconds are medians.
        """
        if args or kwargs:
            if self.padding is not None:
                args, kwargs, _ = self.padding.apply(args, kwargs)
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
        with self._without_grad(), torch.autocast("cpu", enabled=False):
            return explain(program, inputs, repeats, self._original[0])

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
            self._twins.forget()
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
        write_plan(file, self.accuracy, planned, self.padding)

    def pad(self, padding: Padding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Pad calls from now on, and plan the arguments of an example, of any length."""
        self.padding, self._sample = padding, (args, kwargs)
        args, kwargs, _ = padding.apply(args, kwargs)
        self.fix_all([pytree.tree_flatten((args, kwargs))])

    def prepare(self, shapes: Iterable[Any] | None = None) -> OptimizedModel:
        """Plan shapes now, outside of requests; return the plan, which keeps them.

        shapes: a list. An item is a shape such as (8, 3, 224, 224), a tuple of shapes if the model
        takes several tensors, or inputs as `optimize` takes them. For a shape, the other arguments,
        types and layouts are those of the example, and the values are made up. Each shape is tuned
        and verified as the example was. None: all planned lengths of `optimize(..., lengths=)`.
        InvalidArgument, before anything is planned, for other items, or if there are more shapes
        than the plan keeps. TorchError if the model does not run on a shape, or cannot be planned.
        """
        example = self._example
        if example is None:
            raise TorchError("prepare: nothing has been planned yet; call optimize first")
        wanted = self._all_lengths() if shapes is None else inputs_of(shapes, *example)
        count = len({self._key(*one) for one in wanted} | self._fixed)
        if count > self.admission.shapes:
            raise InvalidArgument(
                f"prepare: {count} shapes, those that were given before included, are more than "
                f"the {self.admission.shapes} that the plan keeps: pass shapes={count} to optimize"
            )
        self.fix_all(wanted)
        return self

    def _all_lengths(self) -> list[tuple[list[Any], Any]]:
        if self.padding is None or self._sample is None:
            raise InvalidArgument("prepare: name shapes: the plan was made without lengths")
        lengths = self.padding.lengths
        return [pytree.tree_flatten(lengths.resized(*self._sample, one)) for one in lengths.planned]

    def fix_all(self, wanted: Sequence[tuple[list[Any], Any]]) -> None:
        """Call `fix` for each of the inputs."""
        for leaves, spec in wanted:
            self.fix(leaves, spec)

    def fix(self, leaves: list[Any], spec: Any) -> None:
        """Plan inputs like these, tune and verify the plan, and keep it for good.

        If the accuracy is "exact", for calls with gradients on and off, unless the model runs in
        one of these modes only.
        """
        if self.accuracy != "exact":
            self._fix(leaves, spec)
            return
        mode = torch.is_grad_enabled()
        failures = []
        for grad in (mode,) if torch.is_inference_mode_enabled() else (not mode, mode):
            with torch.set_grad_enabled(grad):
                try:
                    self._fix(leaves, spec)
                except TorchError as error:
                    failures.append(error)
                    if len(failures) == 1 + (not torch.is_inference_mode_enabled()):
                        raise

    def _fix(self, leaves: list[Any], spec: Any) -> None:
        key = self._key(leaves, spec)
        if key in self._fixed:
            return
        model = self._original[0]
        if model is None:
            self.program(leaves, spec)
            self._fixed.add(key)
            return
        with self._lock:
            known = self._programs.get(key)
            try:
                self.keep(self._verified(model, leaves, spec, known), fixed=True)
            except BaseException:
                self._drop(key)  # a call may have planned what is found to be wrong
                raise
        return_freed_memory()

    def _verified(
        self, model: nn.Module, leaves: list[Any], spec: Any, known: Planned | None
    ) -> Planned:
        """Return a tuned plan for inputs like these, whose results were compared."""
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        grad, names = bool(self._grad()), self._planned_for()
        if self.pure:
            # Before the model runs, which might change more than is known of it yet.
            known = known or self._make(leaves, spec)
        with torch.autocast("cpu", enabled=False), self._without_grad():
            expected = eager_outputs(model, args, kwargs, names, grad)
            known = known or self._make(leaves, spec)
            program = known.program
            tensors = (leaf for leaf in leaves if isinstance(leaf, Tensor))
            inputs = [one.detach().resolve_conj().resolve_neg() for one in tensors]
            # The copies of inputs that the model leaves as they were are not needed any more.
            left = [
                one if place in program.changed.places else inputs[place]
                for place, one in enumerate(expected[1])
            ]
            expected = expected[0], left
            if self.tunes:
                tune(program, inputs)
            if self.memory is not None:
                limit_memory(program, _limit(program, self.memory))
            run = partial(_eager, model, leaves, spec, grad)
            wide = partial(_in_float64, model, leaves, spec)
            verify_examples(program, inputs, expected, run, wide)
        return known

    def program(self, leaves: list[Any], spec: Any) -> tuple[Program, Any]:
        """Return the program for inputs like these, and how its outputs nest; plan new inputs."""
        key = self._key(leaves, spec)
        known = self._programs.get(key)
        if known is None:
            with self._lock:
                known = self._programs.get(key)
                if known is None:
                    known = self._make(leaves, spec)
                    self.keep(known)
        return known.program, known.structure

    def _make(self, leaves: list[Any], spec: Any) -> Planned:
        """Return a new plan for inputs like these."""
        start = perf_counter()
        grad = bool(self._grad())
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(grad),
            torch.autocast("cpu", enabled=False),
        ):
            made = self._plan(leaves, spec)
        # In a locked run, no time decides which shapes are planned: only how often they come back.
        seconds = perf_counter() - start if current_lock() is None else inf
        with self._book:
            self.admission.planned(self._key(leaves, spec), seconds)
        return made

    def keep(self, planned: Planned, fixed: bool = False) -> None:
        """Keep a planned shape; drop the oldest if there are more than the plan keeps.

        Shapes that are fixed stay.
        """
        grads = [planned.grad]
        if planned.grad is None and self.accuracy == "exact":  # from a file of an earlier version
            grads = [False, True]
        for grad in grads:
            key = key_of(planned.leaves, planned.spec, known=True, grad=grad)
            self._programs[key] = planned
            if fixed:
                self._fixed.add(key)
        if fixed and self._example is None:
            self._example = planned.leaves, planned.spec
        loose = [one for one in self._programs if one not in self._fixed]
        for key in loose[: max(0, len(self._programs) - self.admission.shapes)]:
            self._drop(key)

    def _drop(self, key: Any) -> None:
        self._programs.pop(key, None)
        self._simple = {}

    def _grad(self) -> bool | None:
        return torch.is_grad_enabled() if self.accuracy == "exact" else None

    def _key(self, leaves: list[Any], spec: Any) -> tuple[Hashable, ...]:
        return key_of(leaves, spec, grad=self._grad())

    def _repeats(self, leaves: Sequence[Any]) -> bool:
        """Return whether an exact plan gets one tensor twice.

        A model may ask whether two arguments are the same: `nn.MultiheadAttention` then takes
        another kernel, whose results differ in bits. A plan is made for different tensors.
        """
        if self.accuracy != "exact" or len(leaves) < 2:
            return False
        tensors = [id(one) for one in leaves if isinstance(one, Tensor)]
        return len(set(tensors)) < len(tensors)

    def _known(self, leaves: list[Any], spec: Any) -> Planned | None:
        """Return the program for a call; None if the model answers."""
        if self._repeats(leaves):
            if self._original[0] is None:
                raise TorchError(
                    f"optimize: got {described(leaves)}, one tensor in two places. Models may "
                    "compute other bits then, and this exact plan was loaded or released: pass a "
                    "copy for each place"
                )
            return None
        key = self._key(leaves, spec)
        known = self._programs.get(key)
        if known is not None:
            with self._book:
                self.admission.meet(key)
            return known
        if self._original[0] is not None:
            if not self._is_due(key):
                return None
            if not self._lock.take():
                return None  # another thread plans
            try:
                self.program(leaves, spec)
            except TorchError:
                # The model may still answer. If it does not either, its error says more.
                with self._book:
                    self.admission.refuse(key)
                return None
            finally:
                self._lock.release()
        else:
            self.program(leaves, spec)
        return self._programs.get(key)

    def _is_due(self, key: tuple[Hashable, ...]) -> bool:
        """Return whether a call should plan its shape, for which there is room then."""
        with self._book:
            programs = entries(self._programs)
            others = any(one[:2] == key[:2] and one[3:] == key[3:] for one, _ in programs)
            # What was planned for another number of threads is only bound again.
            if not (others or self.admission.comes_back(key)):
                return False
            if self.admission.has_room([4 * one.program.floats for _, one in programs]):
                return True
            if others and not self.admission.comes_back(key):
                return False
            epoch = self.admission.epoch
            replaced = self.admission.replaceable(
                [one for one, _ in programs if one not in self._fixed]
            )
            if replaced is not None:
                self._drop(replaced)
                return True
            if self.admission.epoch != epoch:
                self._simple = {}  # so that the admission is told of the next call of each shape
            warns = self.admission.is_crowded and not self._warned
            self._warned = self._warned or warns
        if warns:
            warnings.warn(
                f"optimize: the plan meets more input shapes than the {len(programs)} that it "
                "keeps, and the model answers the others, at its own speed: pass shapes= to "
                "optimize, or pad inputs to fewer shapes",
                BestofWarning,
                stacklevel=6,
            )
        return False

    def _by_model(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any], spec: Any
    ) -> Any:
        """Return what the model returns for inputs that are not planned."""
        model = self._original[0]
        if model is None:  # another thread has released the plan since
            return self.forward(*args, **kwargs)
        refuse_gradients([leaf for leaf in leaves if isinstance(leaf, Tensor)])
        if self._twins.are_new:
            self.check_unchanged(model)
        start = perf_counter()
        try:
            with self._without_grad(), torch.autocast("cpu", enabled=False):
                outputs = self._twins.run(model, args, kwargs)
        except (*FAILURES, AssertionError, LookupError) as error:
            if isinstance(error, TorchError):
                raise
            raise TorchError(
                f"optimize: {type(model).__name__} does not run on {described(leaves)}: "
                f"{first_line(error)}; the plan was made for {self._planned_for()}"
            ) from error
        seconds = perf_counter() - start
        with self._book:
            self.admission.tell(self._key(leaves, spec), seconds)
        return pytree.tree_map_only(Tensor, _detached, outputs)

    def _plan(self, leaves: list[Any], spec: Any) -> Planned:
        model = self._original[0]
        if model is not None:
            self.check_unchanged(model)
            other = self._for_other_threads(leaves, spec)
            if other is not None:
                return other
            known = self._planned_for()
            return plan_inputs(
                *(model, leaves, spec, self._weights, self.accuracy),
                pure=self.pure,
                known=known,
                joins=self.joins,
                grad=self._grad(),
            )
        other = self._for_other_threads(leaves, spec)
        if other is None:
            raise TorchError(
                f"optimize: got {described(leaves)}; this plan was loaded or released, and serves "
                "only inputs with the types, shapes and strides that it was planned for "
                f"({self._planned_for()}): plan.prepare plans others, before saving or releasing "
                "it"
            )
        return other

    def extra_repr(self) -> str:
        """Return what the plan is made for, which stands in its text."""
        return f"for {self._planned_for()}" if self._programs else "nothing is planned yet"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: a row for each set of input shapes that is planned."""
        rows = []
        for known in self._programs.values():
            program = known.program
            made = f"{len(program.decisions())} of {len(program.choices)}"
            steps = sum(node.op == "call_function" for node in program.nodes)
            rows.append((described(known[0]), str(steps), made))
        notes = [] if rows else ["nothing is planned yet"]
        title = f"plan, accuracy {self.accuracy}"
        return html_table(title, ("inputs", "steps", "choices made"), rows, notes=notes)

    def _planned_for(self) -> str:
        return "; ".join(described(known[0]) for known in self._programs.values())

    def _for_other_threads(self, leaves: list[Any], spec: Any) -> Planned | None:
        """Return a plan for these inputs that was made for another number of threads."""
        wanted = self._key(leaves, spec)
        for key, known in reversed(self._programs.items()):
            if key[:2] == wanted[:2] and key[3:] == wanted[3:]:
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
        other = type(self)(None, self.accuracy)
        other.pure, other.joins = self.pure, self.joins
        other.tunes, other.memory = self.tunes, self.memory
        other.padding, other._sample = self.padding, self._sample
        other.admission = Admission(self.admission.shapes)
        other._example, other._twins = self._example, self._twins
        other._state, other._weights = self._state, self._weights
        other._original = self._original
        with self._lock:
            other._programs = OrderedDict(self._programs)
            other._fixed = set(self._fixed)
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
        accuracy, planned, padding = read_plan(file)
        plan = cls(None, accuracy)
        plan.padding = padding
        # Each shape of the file, and as many for other numbers of threads.
        plan.admission = Admission(max(SHAPES, 4 * len(planned)))
        for one in planned:
            plan.keep(one, fixed=True)
        return plan

    @classmethod
    def _from_bytes(cls, content: bytes) -> OptimizedModel:
        return cls.from_file(io.BytesIO(content))


def _threads_and_grad() -> Hashable:
    return torch.get_num_threads(), torch.is_grad_enabled()


def _eager(
    model: nn.Module, leaves: list[Any], spec: Any, grad: bool, inputs: Sequence[Tensor]
) -> tuple[list[Any], list[Tensor]]:
    """Return what the model computes, and makes of its inputs, for other tensors."""
    rest = iter(inputs)
    given = [next(rest) if isinstance(one, Tensor) else one for one in leaves]
    args, kwargs = pytree.tree_unflatten(given, spec)
    return eager_outputs(model, args, kwargs, grad=grad)


def _in_float64(
    model: nn.Module, leaves: list[Any], spec: Any, inputs: Sequence[Tensor]
) -> tuple[list[Any], list[Tensor]] | None:
    """Return what a copy of the model computes in float64; None if it does not run so.

    Meanwhile there are the weights once more, in float64. The model's hooks run, too.
    """
    try:
        wide = copy.deepcopy(model).double()
        given = [one.double() if one.is_floating_point() else one for one in inputs]
        return _eager(wide, leaves, spec, False, given)
    except Exception:  # of any model: it may name its types, or memory is short
        return None


def _limit(program: Program, memory: int | Literal["eager"]) -> int:
    if memory != "eager":
        return memory << 20
    assert program.eager_bytes is not None
    return program.eager_bytes


def _detached(one: Tensor) -> Tensor:
    return one.detach() if one.requires_grad else one


def refuse_gradients(inputs: Sequence[Tensor]) -> None:
    if torch.is_grad_enabled() and any(one.requires_grad for one in inputs):
        raise TorchError(
            "optimize: a plan has no backward pass, and an input requires a gradient; call it "
            "under torch.no_grad(), or train the original model"
        )
