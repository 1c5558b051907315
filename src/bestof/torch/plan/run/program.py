"""The steps of a plan for inputs of given shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from bestof.accuracy import Accuracy
from bestof.errors import TorchError
from bestof.torch.backends.shim import watch
from bestof.torch.plan.layers.frozen_weights import versions
from bestof.torch.plan.memory.arena import Arena
from bestof.torch.plan.memory.memory_plan import MemoryPlan, view_of
from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.run.live_check import with_live_check
from bestof.torch.plan.run.noisy_choices import NoisyChoices
from bestof.torch.plan.run.team_size import MANY_STEPS, TeamSize, run_on_all, run_on_team
from bestof.torch.plan.run.torch_step import torch_step
from bestof.torch.plan.steps.binding import Binding
from bestof.torch.plan.steps.chosen_step import Choice
from bestof.torch.plan.steps.compared_step import ComparedStep
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.changed_inputs import ChangedInputs
from bestof.torch.plan.trace.eager_run import first_line
from bestof.torch.plan.trace.graph import PlainGraph
from bestof.torch.plan.trace.mutation import aliased_argument
from bestof.torch.plan.trace.strides import copied, with_strides
from bestof.torch.process.fork_lock import ForkLock
from bestof.torch.process.neighbours import NEIGHBOURS

Read = TypeVar("Read")

# What a step raises that cannot run. Not LookupError: a call may give an index beyond a table.
FAILURES = ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError


class Program:
    """A fused graph for inputs of fixed shapes, ready to run.

    A program is made once for each set of input shapes: from a trace, or from a file. The program
    decides where each value lies (`MemoryPlan`), and holds the choice of an algorithm for each
    fused layer (`choices`). To run, the program is bound to memory: a `Binding` is an arena and a
    list of functions, one a step, which a call runs in order. Each thread that calls at the same
    time has a binding of its own; all share the choices and the packed weights. `eager_bytes`: what
    PyTorch would take at its peak, None if the program comes from a file.
    """

    def __init__(
        self, graph: GraphModule | PlainGraph, accuracy: Accuracy, eager_bytes: int | None = None
    ) -> None:
        self.accuracy, self.eager_bytes = accuracy, eager_bytes
        self._module = graph
        self.nodes = [node for node in graph.graph.nodes if node.op != "output"]
        self.inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.output: Node = next(node for node in graph.graph.nodes if node.op == "output")
        self._memory = MemoryPlan(self.nodes)
        self.choices: dict[Node, Choice] = {}
        for node in self.nodes:
            operation = operation_of(node)
            choice = None if operation is None else operation.choice(node, accuracy)
            if choice is not None:
                self.choices[node] = choice
        self.changed = ChangedInputs(self.nodes)
        outputs: tuple[Any, ...] = tuple(self.output.args[0])
        described = self.output.meta.get("val") or [None] * len(outputs)
        self._finders = [
            self._finder(output, one) for output, one in zip(outputs, described, strict=True)
        ]
        self.noisy_choices = NoisyChoices()
        self._team = TeamSize()
        self._is_exact = accuracy == "exact"  # PyTorch's bits depend on the number of threads
        self._lock = ForkLock()
        self._idle: list[Binding] = []

    def run(
        self, inputs: list[Tensor], after_step: Callable[[Binding, Step], object] | None = None
    ) -> list[Any]:
        """Return the flattened outputs for tensors of the shapes that were traced.

        `after_step` is called after each step. TorchError if a plan that was loaded fails: `load`
        checks what kernels rely on, and not what PyTorch and the kernels check themselves.
        """
        try:
            return self._run(inputs, after_step)
        except FAILURES as error:
            if self.eager_bytes is not None or isinstance(error, TorchError):
                raise
            raise TorchError(
                f"a plan that was loaded failed: {first_line(error)}; if the arguments are right "
                "and there is enough memory, its file was changed: optimise the model again, and "
                "save it"
            ) from error

    def _run(
        self, inputs: list[Tensor], after_step: Callable[[Binding, Step], object] | None
    ) -> list[Any]:
        binding = self._take()
        try:
            binding.check()
            slots = binding.slots
            slots[: len(inputs)] = inputs
            if after_step is None and Step.observer is not None:
                for step in binding.steps:
                    Step.observer(step)
            elif after_step is None:
                binding.calls += 1
                runs = binding.runs
                if binding.calls >= binding.asks_at:  # above it after an interrupt here
                    noisy = self.noisy_choices
                    if noisy.are_due and noisy.reopen(self.choices.values()):
                        self.bind_anew()
                    runs = with_live_check(binding, self.bind_anew)
                # Beside neighbours, a part of a step may wait for its thread longer than the step
                # takes. The watch tells of neighbours, for exact plans too.
                is_alone = NEIGHBOURS.watches and not NEIGHBOURS.waited
                if is_alone and runs is binding.runs:
                    runs = binding.joined or runs
                # A race compares algorithms for the number of threads of their problems.
                may_use_fewer = binding.settled and not self._is_exact
                if may_use_fewer and (NEIGHBOURS.waited or self._team.is_open):
                    run_on_team(self._team, runs, len(binding.steps))
                elif may_use_fewer and is_alone and len(binding.steps) >= MANY_STEPS:
                    run_on_all(self._team, runs)
                else:
                    for run in runs:
                        run()
            else:
                for step in binding.steps:
                    step.run()
                    after_step(binding, step)
            outputs = [find(slots) for find in self._finders]
            if not binding.settled:
                binding.refresh()
            return outputs
        finally:
            self.give_back(binding)

    def read(
        self,
        inputs: list[Tensor],
        after_step: Callable[[Binding, Step], object],
        reader: Callable[[list[Any]], Read],
    ) -> Read:
        """Run step by step; return what `reader` makes of the outputs where they lie.

        This saves copies of large outputs, which lie in the arena, perhaps in another layout.
        """
        binding = self._take()
        try:
            binding.check()
            slots = binding.slots
            slots[: len(inputs)] = inputs
            for step in binding.steps:
                step.run()
                after_step(binding, step)
            found = reader(
                [
                    slots[self._memory.slot[output]] if isinstance(output, Node) else output
                    for output in self.output.args[0]  # type: ignore[union-attr]
                ]
            )
            binding.refresh()
            return found
        finally:
            self.give_back(binding)

    def rebound(self) -> Program:
        """Return the program for the number of threads in use now, with the ordered choices."""
        other = Program(self._module, self.accuracy, self.eager_bytes)
        ordered = self.decisions(ordered=True)
        for node, choice in other.choices.items():
            name = ordered.get(node.meta["name"])
            if name is not None and choice.can_run(name):  # by other threads, perhaps not
                choice.settle(name)
        return other

    @property
    def graph(self) -> Graph:
        """What is computed."""
        return self._module.graph

    @property
    def planned(self) -> Collection[Node]:
        """The values that lie in the arena."""
        return self._memory.planned

    @property
    def floats(self) -> int:
        """The size of the arena, in floats."""
        return self._memory.floats

    def attribute(self, node: Node) -> Any:
        """Return the parameter or buffer that a node reads."""
        return _attribute(self._module, str(node.target))

    def attributes(self) -> list[Any]:
        """Return the parameters and buffers that the steps read, beside the weights of layers."""
        return [self.attribute(node) for node in self.nodes if node.op == "get_attr"]

    def decisions(self, ordered: bool = False) -> dict[str, str]:
        """Return the chosen algorithms by the names of their steps; only `ordered` ones if set."""
        return {
            node.meta["name"]: choice.recorded
            for node, choice in self.choices.items()
            if choice.recorded is not None and (choice.is_ordered or not ordered)
        }

    def settle(self, decisions: dict[str, str]) -> None:
        """Choose algorithms by the names of their steps. Other steps keep their algorithms."""
        for node, choice in self.choices.items():
            if node.meta["name"] in decisions:
                choice.settle(decisions[node.meta["name"]])

    def made_up_inputs(self) -> list[Tensor]:
        """Return tensors of the shapes that were traced: normal if floating-point, else zero."""
        values = [node.meta["val"] for node in self.inputs]
        return [
            torch.randn(one.shape, dtype=one.dtype)
            if one.is_floating_point()
            else torch.zeros(one.shape, dtype=one.dtype)
            for one in values
        ]

    def borrow(self) -> Binding:
        """Return a binding for tuning or timing; give it back with `give_back`."""
        return self._take()

    def give_back(self, binding: Binding) -> None:
        """Return a binding, and drop the values that a call has left in it."""
        for slot in self._memory.passing:
            binding.slots[slot] = None
        if binding.home is self._idle:
            self._idle.append(binding)

    def bind_anew(self) -> None:
        """Drop all bindings: the next call binds again; running calls end as they began."""
        self._idle = []

    def _take(self) -> Binding:
        try:  # `suppress` would cost each call 0.3 us
            return self._idle.pop()
        except IndexError:
            pass
        # Tensors made in inference mode could not be written to outside of it.
        with self._lock, torch.inference_mode(False), torch.no_grad():
            return self._bind()

    def _bind(self) -> Binding:
        memory = self._memory
        arena = Arena(memory.floats)
        slots: list[Any] = [None] * len(self.nodes)
        for node, buffer in memory.buffers.items():
            operation = operation_of(node)
            rows = operation is not None and operation.yields_rows
            value: Tensor = node.meta["val"]
            slots[memory.slot[node]] = arena.view(buffer, value.shape, rows, value.dtype)
        for node, (whole, start) in memory.parts.items():
            place = slots[memory.slot[whole]]
            slots[memory.slot[node]] = place[:, start : start + node.meta["val"].shape[1]]
        for node, given in memory.views.items():
            slots[memory.slot[node]] = view_of(node, slots[memory.slot[given]])
        for node in self.nodes:
            if node.op == "get_attr":
                slots[memory.slot[node]] = self.attribute(node)
        steps = [self._step(node, slots, arena) for node in self.nodes if memory.needs_step(node)]
        shared = self._shared(slots, steps)
        binding = Binding(
            arena, slots, steps, shared=shared, versions=versions(shared), home=self._idle
        )
        binding.watch = watch(shared, sampled=False)
        binding.refresh()
        return binding

    def _step(self, node: Node, slots: list[Any], arena: Arena) -> Step:
        placed = PlacedNode(node, self._memory, arena, slots, self.choices.get(node))
        operation = operation_of(node)
        step = torch_step(node, placed) if operation is None else operation.bind(node, placed)
        if isinstance(step.chosen, ComparedStep):
            step.chosen.made_up = partial(self._made_up_step, node, slots, arena)
        return step

    def _made_up_step(self, node: Node, slots: list[Any], arena: Arena) -> ComparedStep:
        """Return a step like one of a binding, on normal operands in memory of its own.

        It shares the choice of the algorithm, the parameters and the workspace; whole numbers are
        those of the binding.
        """
        own, generator = list(slots), torch.Generator().manual_seed(0)
        for one in (node, *node.all_input_nodes):
            slot = self._memory.slot[one]
            value = own[slot]
            if one.op != "get_attr" and isinstance(value, Tensor):
                own[slot] = _made_up(value, generator)
        chosen = self._step(node, own, arena).chosen
        assert isinstance(chosen, ComparedStep)
        return chosen

    def _shared(self, slots: list[Any], steps: list[Step]) -> list[Tensor]:
        """Return the model's tensors that the steps read, those that can tell of changes."""
        read = [slots[self._memory.slot[node]] for node in self.nodes if node.op == "get_attr"]
        chosen = [step.chosen for step in steps if step.chosen is not None]
        read += [one for step in chosen for weights, _ in step.reads for one in weights.watched]
        return [
            one
            for one in read
            if isinstance(one, Tensor) and not one.is_inference() and not one.is_meta
        ]

    def _finder(self, output: Any, described: Any) -> Callable[[list[Any]], Any]:
        """Return the function that takes an output from the slots.

        An output has the strides that PyTorch would give it, and never lies in the arena.
        described: a tensor with these strides, if the node's own differ.
        """
        if not isinstance(output, Node):
            return lambda _: output
        slot = self._memory.slot[output]
        value = output.meta["val"]
        if output.op in ("placeholder", "get_attr") or not isinstance(value, Tensor):
            return lambda slots: slots[slot]
        root: Node | None = output
        while root is not None and root not in self._memory.buffers:
            root = aliased_argument(root)
        strides, shape, dtype = value.stride(), value.shape, value.dtype
        if isinstance(described, Tensor) and described.shape == shape:
            strides = described.stride()
        if root is None:
            return lambda slots: with_strides(slots[slot], strides)
        if 0 in strides:
            return lambda slots: copied(slots[slot], strides)
        return lambda slots: torch.empty_strided(shape, strides, dtype=dtype).copy_(slots[slot])


class Planned(NamedTuple):
    """A program and its inputs.

    leaves: the flattened inputs, tensors without data. spec: how inputs nest. structure: how
    outputs nest. grad: whether the program computes what the model does with gradients on, or
    off; None if one program serves both.
    """

    leaves: list[Any]
    spec: Any
    program: Program
    structure: Any
    grad: bool | None = None


def _made_up(value: Tensor, generator: torch.Generator) -> Tensor:
    """Return normal numbers that lie in memory as a value does."""
    if not value.is_floating_point():
        return value.clone()
    strides = value.contiguous().stride() if 0 in value.stride() else value.stride()
    made = torch.empty_strided(value.shape, strides, dtype=value.dtype)
    return made.normal_(generator=generator)


def _attribute(module: nn.Module, target: str) -> Any:
    value: Any = module
    for name in target.split("."):
        value = getattr(value, name)
    return value.detach() if isinstance(value, Tensor) else value
