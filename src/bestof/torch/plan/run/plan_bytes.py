"""Count the bytes of a plan, and of the model that it was made from."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node

from bestof.torch.plan.run.program import Program
from bestof.torch.plan.trace.mutation import root_of


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """The bytes of a plan.

    weights: parameters and buffers that the plan reads in the model's layout.
    packed: weights in layouts of its own.
    arena: the values of a call, those that PyTorch's operators return included. Each planned shape
    has one for every thread that calls at the same time.
    model: all parameters and buffers of the model, while the plan keeps it.
    eager: what the model takes at its peak when PyTorch runs it; None if the plan was loaded.
    """

    weights: int
    packed: int
    arena: int
    model: int
    eager: int | None

    @property
    def own(self) -> int:
        """What the plan takes once it is released, if nothing else keeps the model."""
        return self.weights + self.packed + self.arena

    def line(self) -> str:
        """Return plain text."""
        parts = (
            f"arena {_mib(self.arena)}, packed weights {_mib(self.packed)}, others "
            f"{_mib(self.weights)}"
        )
        if self.model:
            parts += f", the model's {_mib(self.model)} until plan.release()"
        if self.eager is None:
            return parts
        parts += f"; eager takes {_mib(self.eager)} at its peak"
        beyond = self.own - self.eager
        if beyond > 0:
            parts += (
                f", {_mib(beyond)} less than the released plan: memory='eager' trades speed for it"
            )
        return parts


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the distinct storages of tensors; 0 for tensors without data."""
    found = {}
    for one in tensors:
        if not one.is_meta and one.layout is torch.strided:
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def model_bytes(model: nn.Module | None) -> int:
    """Return the bytes of all parameters and buffers."""
    return 0 if model is None else bytes_of([*model.parameters(), *model.buffers()])


def memory_of(program: Program, model: int) -> PlanMemory:
    """Return the memory of a program; `model`: the bytes of the model that is still kept."""
    binding = program.borrow()
    try:
        reads = [one for step in binding.chosen for one in step.reads]
        packed = {id(one): one.nbytes for _, held in reads for one in held}
        read = [value for value in program.attributes() if isinstance(value, Tensor)]
        for weights, held in reads:
            read += [] if weights.bias is None else [weights.bias]
            if not held or any(one.shared for one in held):
                read.append(weights.weight)
        values = 4 * program.floats + peak_of_values(program.graph, program.planned)
        return PlanMemory(bytes_of(read), sum(packed.values()), values, model, program.eager_bytes)
    finally:
        program.give_back(binding)


def peak_of_values(graph: Graph, elsewhere: Container[Node] = ()) -> int:
    """Return the most bytes that the values of a traced graph take at one time.

    Each value lives until its last reader has run, as in PyTorch's eager mode. Inputs, attributes,
    values that lie `elsewhere`, and the scratch memory of kernels are not counted.
    """
    nodes = [node for node in graph.nodes if node.op != "output"]
    position = {node: place for place, node in enumerate(nodes)}
    last: dict[Node, int] = {}
    for node in nodes:
        root = root_of(node)
        readers = [len(nodes) if user.op == "output" else position[user] for user in node.users]
        last[root] = max([last.get(root, position[root]), *readers])
    ends: dict[int, int] = {}
    live = peak = 0
    for place, node in enumerate(nodes):
        if node.op == "call_function" and root_of(node) is node and node not in elsewhere:
            size = _size(node.meta.get("val"))
            live += size
            ends[last[node]] = ends.get(last[node], 0) + size
        peak = max(peak, live)
        live -= ends.pop(place, 0)
    return peak


def _size(value: object) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 0
