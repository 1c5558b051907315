"""The steps of a plan for inputs of given shapes, and what they become when they are bound to memory."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from bestof.errors import TorchError
from bestof.torch.accuracy import Accuracy
from bestof.torch.plan import observer
from bestof.torch.plan.arena import Arena, Buffer, plan_offsets
from bestof.torch.plan.convolution_step import ConvolutionStep, problem_of
from bestof.torch.plan.frozen_weights import versions
from bestof.torch.plan.fusion import convolution, pooled_convolutions, pooling, reads_strides
from bestof.torch.plan.mutation import aliased_argument
from bestof.torch.plan.runner import columns_runner, pooling_runner, torch_runner, writing_runner
from bestof.torch.plan.writing import RESHAPING, columns, rows, writing_form
from bestof.torch.shim import Watch, watch


@dataclass(slots=True)
class Step:
    """One operator: its name and kind in reports, the slot of its result, whether that lies in the arena, and the
    function that runs it; the convolution that it may be."""

    name: str
    kind: str
    slot: int
    is_planned: bool
    run: Callable[[], object]
    convolution: ConvolutionStep | None = None


@dataclass(slots=True)
class Binding:
    """A program bound to an arena: one call at a time."""

    arena: Arena
    slots: list[Any]
    steps: list[Step]
    runs: list[Callable[[], object]] = field(default_factory=list)
    settled: bool = False
    shared: list[Tensor] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    home: list[Any] = field(default_factory=list)  # where it waits between calls
    watch: Watch | None = None  # over `shared`

    def refresh(self) -> None:
        """Take the decisions that were made since."""
        convolutions = [step.convolution for step in self.steps if step.convolution is not None]
        self.settled = sum(one.learn() for one in convolutions) == len(convolutions)
        for step in self.steps:
            if step.convolution is not None:
                step.run = step.convolution.run
        self.runs = [step.run for step in self.steps]

    def check(self) -> None:
        """Raise TorchError where a parameter that the steps read from the model was changed in place."""
        if self.watch is not None and self.watch.is_unchanged():
            return
        if [one._version for one in self.shared] != self.versions:
            raise TorchError(
                "optimize: a parameter or buffer of the model was changed after the plan was made, which is frozen and "
                "shares the memory of those that it does not transform; call optimize again"
            )
        if self.watch is not None:
            self.watch = watch(self.shared)  # memory has moved


class Program:
    """A traced and fused graph as a list of steps; any number of threads may run it, each with memory of its own."""

    def __init__(
        self, graph: GraphModule, accuracy: Accuracy, eager_bytes: int | None = None
    ) -> None:
        self.accuracy = accuracy
        self.eager_bytes = (
            eager_bytes  # of the model and its values at their peak, where PyTorch runs it
        )
        self._module = graph
        self.nodes = [node for node in graph.graph.nodes if node.op != "output"]
        self.inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.output: Node = next(node for node in graph.graph.nodes if node.op == "output")
        self._outputs: tuple[Any, ...] = tuple(self.output.args[0])
        self._slot = {node: position for position, node in enumerate(self.nodes)}
        self._buffers: dict[Node, Buffer] = {}
        self._last = self._lives()
        self._pooled = pooled_convolutions(self.nodes)
        self._plan_memory()
        self._views = self._planned_views()
        self.floats = plan_offsets(
            list({id(buffer): buffer for buffer in self._buffers.values()}.values())
        )
        self.problems = {
            node: problem_of(
                node.meta["operation"],
                accuracy,
                _rows_shape(node),
                len(node.args) > 1,
                node in self._pooled,
            )
            for node in self.nodes
            if node.target is convolution
        }
        stays = {*self._buffers, *self._views}
        self._passing = [
            self._slot[node] for node in self.nodes if node not in stays and node.op != "get_attr"
        ]
        self._finders = [self._finder(output) for output in self._outputs]
        self._lock = threading.Lock()
        self._idle: list[Binding] = []
        self.fixed: dict[str, str] = {}  # steps whose algorithm is not the selector's to choose

    def run(
        self, inputs: list[Tensor], after_step: Callable[[Binding, Step], object] | None = None
    ) -> list[Any]:
        """The flattened outputs for tensors of the shapes that were traced; `after_step` is called after each step."""
        binding = self._take()
        try:
            binding.check()
            slots = binding.slots
            slots[: len(inputs)] = inputs
            if after_step is None and observer.run_step is not None:
                for step in binding.steps:
                    observer.run_step(step)
            elif after_step is None:
                for run in binding.runs:
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

    def rebound(self) -> Program:
        """The same steps and decisions, for the threads that are in use now."""
        other = Program(self._module, self.accuracy, self.eager_bytes)
        other.fixed.update(self.fixed)
        return other

    @property
    def graph(self) -> Graph:
        """What is computed."""
        return self._module.graph

    @property
    def planned(self) -> Container[Node]:
        """The values that lie in the arena."""
        return self._buffers.keys()

    def attribute(self, node: Node) -> Any:
        """The parameter or buffer that a node reads."""
        return _attribute(self._module, str(node.target))

    def decisions(self) -> dict[str, str]:
        """The algorithm of each step that is settled."""
        binding = self._take()
        try:
            steps = [(step.name, step.convolution) for step in binding.steps]
            return {
                name: one.algorithm
                for name, one in steps
                if one is not None and one.algorithm is not None
            }
        finally:
            self.give_back(binding)

    def made_up_inputs(self) -> list[Tensor]:
        """Tensors of the shapes that were traced: normal where they are floating-point, else zero."""
        values = [node.meta["val"] for node in self.inputs]
        return [
            torch.randn(one.shape, dtype=one.dtype)
            if one.is_floating_point()
            else torch.zeros(one.shape, dtype=one.dtype)
            for one in values
        ]

    def borrow(self) -> Binding:
        """A binding for tuning or timing; give it back with `give_back`."""
        return self._take()

    def give_back(self, binding: Binding) -> None:
        """The opposite of `borrow`; drops what a run has left."""
        for slot in self._passing:
            binding.slots[slot] = None
        if binding.home is self._idle:
            self._idle.append(binding)

    def attributes(self) -> list[Any]:
        """The parameters and buffers that its steps read, beside the weights of convolutions."""
        return [self.attribute(node) for node in self.nodes if node.op == "get_attr"]

    def bind_anew(self) -> None:
        """Forget what is bound to memory: the next call binds again, and those that run now end as they began."""
        self._idle = []

    def _take(self) -> Binding:
        try:
            return self._idle.pop()
        except IndexError:
            # Tensors made in inference mode could not be written to outside of it.
            with self._lock, torch.inference_mode(False), torch.no_grad():
                return self._bind()

    # Lives and memory

    def _lives(self) -> dict[Node, int]:
        """The last step that reads each value, by itself or through a view."""
        last = {node: self._slot[node] for node in self.nodes}
        end = len(self.nodes)
        for node in self.nodes:
            for user in node.users:
                last[node] = max(last[node], end if user.op == "output" else self._slot[user])
        for node in reversed(self.nodes):
            parent = aliased_argument(node)
            if parent is not None and node.target not in (convolution, pooling, rows, columns):
                last[parent] = max(last[parent], last[node])
        return last

    def _plan_memory(self) -> None:
        for node in self.nodes:
            if not self._is_planned(node):
                continue
            here, value = self._slot[node], node.meta["val"]
            residual = node.args[1] if node.target is convolution and len(node.args) > 1 else None
            if (
                residual is not None
                and self._last[residual] == here
                and residual is not node.args[0]
            ):
                buffer = self._buffers[residual]  # each element is read just before it is written
                if buffer.last == here and buffer.floats == value.numel():
                    buffer.last = self._last[node]
                    self._buffers[node] = buffer
                    continue
            self._buffers[node] = Buffer(value.numel(), here, self._last[node])
        for node, pool in self._pooled.items():
            self._buffers[pool].first = self._slot[node]  # where it is written already

    def _is_planned(self, node: Node) -> bool:
        return (
            node.target in (convolution, pooling, rows, columns) or writing_form(node) is not None
        )

    def _planned_views(self) -> dict[Node, Node]:
        """The reshaped values that lie in the arena with their argument: they are bound once, and no step makes them.

        PyTorch's operator takes 4 us, and 50 to 120 where its code has left the caches.
        """
        views: dict[Node, Node] = {}
        for node in self.nodes:
            given = node.args[0] if node.target in RESHAPING else None
            if given in views or (given in self._buffers and _is_view(node, given.meta["rows"])):
                views[node] = given
        return views

    # Binding

    def _bind(self) -> Binding:
        arena = Arena(self.floats)
        slots: list[Any] = [None] * len(self.nodes)
        for node, buffer in self._buffers.items():
            slots[self._slot[node]] = arena.view(
                buffer, node.meta["val"].shape, node.meta.get("rows", False)
            )
        for node, given in self._views.items():
            slots[self._slot[node]] = slots[self._slot[given]].view(node.meta["val"].shape)
        for node in self.nodes:
            if node.op == "get_attr":
                slots[self._slot[node]] = _attribute(self._module, str(node.target))
        inside = {*self._views, *self._pooled.values()}
        computed = [
            node for node in self.nodes if node.op == "call_function" and node not in inside
        ]
        steps = [self._step(node, slots, arena) for node in computed]
        shared = [slots[self._slot[node]] for node in self.nodes if node.op == "get_attr"]
        shared += [
            step.convolution.operation.weights.weight
            for step in steps
            if step.convolution is not None
        ]
        shared = [
            one
            for one in shared
            if isinstance(one, Tensor) and not one.is_inference() and not one.is_meta
        ]
        binding = Binding(
            arena, slots, steps, shared=shared, versions=versions(shared), home=self._idle
        )
        binding.watch = watch(shared)
        binding.refresh()
        return binding

    def _step(self, node: Node, slots: list[Any], arena: Arena) -> Step:
        slot, planned = self._slot[node], node in self._buffers
        if node.target is convolution:
            one = self._convolution_step(node, slots)
            name = node.meta["name"]
            if name in self.fixed:
                one.settle(self.fixed[name])
            return Step(name, str(one.problem), slot, planned, one.run, one)
        kind, run = self._other_step(node, slots, slot, arena)
        return Step(node.meta.get("name", node.name), kind, slot, planned, run)

    def _other_step(
        self, node: Node, slots: list[Any], slot: int, arena: Arena
    ) -> tuple[str, Callable[[], object]]:
        if node.target is pooling:
            pool = node.meta["operation"]
            return str(pool), pooling_runner(pool, slots[self._slot[node.args[0]]], slots[slot])
        if node.target is rows:
            source, into = self._slot[node.args[0]], slots[slot]
            return "to channels last", lambda: into.copy_(slots[source])
        if node.target is columns:
            return "to channels first", columns_runner(slots[self._slot[node.args[0]]], slots[slot])
        arguments = self._arguments(node, slots)
        passing = frozenset(self._passing)
        dead = tuple(
            self._slot[given]
            for given in {node, *node.all_input_nodes}
            if self._last[given] <= slot
            and self._slot[given] in passing
            and given.op == "call_function"
        )
        if (form := writing_form(node)) is not None:
            return str(form), writing_runner(form, arguments, slots[slot], slots, dead)
        known = node.target is operator.getitem or aliased_argument(node) is not None
        return str(node.target), torch_runner(
            node, arguments, slot, slots, dead, None if known else arena
        )

    def _convolution_step(self, node: Node, slots: list[Any]) -> ConvolutionStep:
        operation = node.meta["operation"]
        out = slots[self._slot[node]]
        given = node.args[0]
        assert isinstance(given, Node)
        if not operation.linear:
            x, residual = (
                slots[self._slot[given]],
                slots[self._slot[node.args[1]]] if len(node.args) > 1 else None,
            )
            if (pool := self._pooled.get(node)) is not None:
                return ConvolutionStep(
                    operation, self.problems[node], x, slots[self._slot[pool]], residual, out
                )
            return ConvolutionStep(operation, self.problems[node], x, out, residual)
        inner, outer = operation.weights.weight.shape[1], operation.weights.weight.shape[0]
        out = out.view(-1, outer)
        if given in self._views or (given in self._buffers and not given.meta["rows"]):
            return ConvolutionStep(
                operation, self.problems[node], slots[self._slot[given]].view(-1, inner), out, None
            )
        source = self._slot[given]
        return ConvolutionStep(
            operation,
            self.problems[node],
            lambda: _contiguous(slots[source]).view(-1, inner),
            out,
            None,
        )

    def _arguments(self, node: Node, slots: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        strict = reads_strides(node)

        def find(value: Any) -> Any:
            if isinstance(value, Node):
                slot = self._slot[value]
                if strict and isinstance(value.meta.get("val"), Tensor):
                    strides = value.meta["val"].stride()
                    return lambda: _with_strides(slots[slot], strides)
                return lambda: slots[slot]
            if isinstance(value, list | tuple) and any(isinstance(one, Node) for one in value):
                parts = [find(one) for one in value]
                return lambda: [part() for part in parts]
            return lambda: value

        return [find(value) for value in node.args], {
            name: find(value) for name, value in node.kwargs.items()
        }

    def _finder(self, output: Any) -> Callable[[list[Any]], Any]:
        """How an output is taken from the slots: with the strides that PyTorch would give it, never in the arena."""
        if not isinstance(output, Node):
            return lambda _: output
        slot = self._slot[output]
        value = output.meta["val"]
        if output.op in ("placeholder", "get_attr") or not isinstance(value, Tensor):
            return lambda slots: slots[slot]
        root: Node | None = output
        while root is not None and root not in self._buffers:
            root = aliased_argument(root)
        strides, shape, dtype = value.stride(), value.shape, value.dtype
        if root is None:
            return lambda slots: _with_strides(slots[slot], strides)
        return lambda slots: torch.empty_strided(shape, strides, dtype=dtype).copy_(slots[slot])


def _attribute(module: GraphModule, target: str) -> Any:
    value: Any = module
    for name in target.split("."):
        value = getattr(value, name)
    return value.detach() if isinstance(value, Tensor) else value


def _rows_shape(node: Node) -> tuple[int, ...]:
    shape = tuple(node.args[0].meta["val"].shape)  # type: ignore[union-attr]
    if not node.meta["operation"].linear:
        return shape
    rows_ = 1
    for extent in shape[:-1]:
        rows_ *= extent
    return rows_, shape[-1]


def _with_strides(value: Any, strides: tuple[int, ...]) -> Any:
    if not isinstance(value, Tensor) or value.stride() == strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


def _contiguous(value: Tensor) -> Tensor:
    return (value.resolve_neg() if value.is_neg() else value).contiguous()


def _is_view(node: Node, rows_: bool) -> bool:
    """Whether reshaping a planned value, in channels last or else contiguous, leaves it in place and contiguous."""
    given: Tensor = node.args[0].meta["val"]  # type: ignore[union-attr]
    layout = torch.channels_last if rows_ else torch.contiguous_format
    try:
        alike = torch.empty(given.shape, device="meta", memory_format=layout)
        return alike.view(node.meta["val"].shape).is_contiguous()
    except RuntimeError:
        return False
