"""Plans where each value of a program lies, and for how long."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from bestof.torch.plan.memory.arena import Buffer, plan_offsets
from bestof.torch.plan.memory.channel_part import ChannelPart, part_of, set_apart
from bestof.torch.plan.trace.graph import RESHAPING, VIEWING
from bestof.torch.plan.trace.mutation import aliased_argument, root_of


class MemoryPlan:
    """The places of all values, planned once from the graph.

    Every node has a slot, which refers to its value during a call. Values of operations lie in an
    arena: a buffer lives from the step that writes it to the last step that reads it, and shares
    memory with others that do not live at the same time. A value that only a concatenation reads
    is a part of the concatenation's buffer, if its step can write there (`parts`). Reshaped,
    transposed and sliced values that lie where their argument does are views, bound once. All other
    values are PyTorch's, and pass through their slots.

    planned: the values in the arena that are no views.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self.slot = {node: position for position, node in enumerate(nodes)}
        self._last = self._lives()
        self._place()
        self._give_up_parts()
        self.planned: Collection[Node] = {**self.buffers, **self.parts}.keys()
        self.views = self._planned_views()
        stays = {*self.planned, *self.views}
        self.passing = frozenset(
            self.slot[node] for node in nodes if node not in stays and node.op != "get_attr"
        )

    def needs_step(self, node: Node) -> bool:
        """Return whether a step computes a value: no view, and not all written by its parts."""
        if node.op != "call_function" or node in self.views:
            return False
        written = [one for one in node.all_input_nodes if one in self.parts]
        return not written or len(written) < len(node.args)

    def lies_contiguous(self, node: Node) -> bool:
        """Return whether a value lies in the arena, contiguous."""
        return node in self._contiguous or (node in self.buffers and not _yields_rows(node))

    def dead_after(self, node: Node) -> tuple[int, ...]:
        """Return the slots of PyTorch's values that no step behind a node's reads."""
        here = self.slot[node]
        return tuple(
            self.slot[given]
            for given in {node, *node.all_input_nodes}
            if self._last[given] <= here
            and self.slot[given] in self.passing
            and given.op == "call_function"
        )

    def _lives(self) -> dict[Node, int]:
        """Return the last step that reads each value, directly or through a view."""
        last = dict(self.slot)
        end = len(self._nodes)
        for node in self._nodes:
            for user in node.users:
                last[node] = max(last[node], end if user.op == "output" else self.slot[user])
        for node in reversed(self._nodes):
            parent = aliased_argument(node)
            if parent is not None:
                last[parent] = max(last[parent], last[node])
        return last

    def _place(self) -> None:
        self.buffers: dict[Node, Buffer] = {}
        self.parts: dict[Node, ChannelPart] = {}
        self.workspaces: dict[Node, tuple[tuple[int, ...], Buffer]] = {}
        for node in self._nodes:
            if "operation" in node.meta and node.meta["operation"].lies_in_arena:
                self._plan(node)
        buffers = [*self.buffers.values(), *(one for _, one in self.workspaces.values())]
        self.floats = plan_offsets(list({id(buffer): buffer for buffer in buffers}.values()))

    def _give_up_parts(self) -> None:
        """Give up parts until the arena is no larger than without any.

        A concatenation lies in memory from the first of its parts on. Those that lie there for the
        longest times their size are given up first.
        """
        parts = self.parts
        if not parts:
            return
        set_apart(parts, True)
        self._place()
        least = self.floats
        set_apart(parts, False)
        of_whole: dict[Node, list[Node]] = {}
        for node, part in parts.items():
            of_whole.setdefault(part.whole, []).append(node)
        for whole in sorted(of_whole, key=lambda one: self._held(one, of_whole[one]), reverse=True):
            self._place()
            if self.floats <= least:
                return
            set_apart(of_whole[whole], True)
        self._place()

    def _held(self, whole: Node, parts: list[Node]) -> int:
        """Return the floats of a concatenation times the steps that it waits for its own."""
        steps = self.slot[whole] - min(self.slot[one] for one in parts)
        return steps * int(whole.meta["val"].numel())

    def _plan(self, node: Node) -> None:
        here, last, operation = self.slot[node], self._last[node], node.meta["operation"]
        value: Tensor = node.meta["val"]
        floats = -(-value.numel() * value.element_size() // 4)
        shape = operation.workspace(node)
        if shape is not None:
            self.workspaces[node] = shape, Buffer(torch.Size(shape).numel(), here, here)
        part = part_of(node)
        if part is not None:
            self.parts[node] = part
            return
        here = min([here, *(self.slot[one] for one in operation.parts(node) if one in self.parts)])
        reused = self._residual_to_overwrite(node) or self._first_to_overwrite(node)
        if reused is not None and reused.floats == floats:
            reused.last = last
            self.buffers[node] = reused
        else:
            self.buffers[node] = Buffer(floats, here, last)

    def _residual_to_overwrite(self, node: Node) -> Buffer | None:
        """Return the buffer of a residual that only the sum reads and may therefore overwrite.

        Each element is read just before it is written.
        """
        if not node.meta["operation"].overwrites_last or len(node.args) < 2:
            return None
        first, *_, residual = node.args
        if not (isinstance(first, Node) and isinstance(residual, Node)) or root_of(
            first
        ) is root_of(residual):
            return None
        return self._buffer_read_last(residual, node)

    def _first_to_overwrite(self, node: Node) -> Buffer | None:
        """Return the buffer of the first argument, if the operation may overwrite it."""
        overwrites = node.meta["operation"].overwrites_first
        return self._buffer_read_last(node.args[0], node) if overwrites else None  # type: ignore[arg-type]

    def _buffer_read_last(self, given: Node, node: Node) -> Buffer | None:
        """Return the buffer of a value that no step behind a node reads."""
        buffer = self.buffers.get(given)
        alone = buffer is not None and self._last[given] == buffer.last == self.slot[node]
        return buffer if alone else None

    def _planned_views(self) -> dict[Node, Node]:
        """Return the values that lie in the arena with their argument, and that argument.

        PyTorch's operator would take 4 us, and 50 to 120 where its code has left the caches.
        """
        views: dict[Node, Node] = {}
        alike = {node: _laid_out(node) for node in self.buffers}
        for node in self._nodes:
            given = node.args[0] if node.op == "call_function" and node.args else None
            if isinstance(given, Node) and given in alike:
                found = _view(node, alike[given])
                if found is not None:
                    views[node], alike[node] = given, found
        self._contiguous = {node for node in views if alike[node].is_contiguous()}
        return views


def view_of(node: Node, given: Tensor) -> Tensor:
    """Return the value of a view, for the value of its argument."""
    if node.target in RESHAPING:
        return given.view(node.meta["val"].shape)
    target: Any = node.target
    found: Tensor = target(given, *node.args[1:], **node.kwargs)
    return found


def _laid_out(node: Node) -> Tensor:
    """Return a tensor without data that lies in memory as a value of the arena does."""
    layout = torch.channels_last if _yields_rows(node) else torch.contiguous_format
    return torch.empty(node.meta["val"].shape, device="meta", memory_format=layout)


def _view(node: Node, given: Tensor) -> Tensor | None:
    """Return how a view of a planned value lies in memory; None for other nodes."""
    try:
        if node.target in RESHAPING:
            return view_of(node, given)
        if node.target not in VIEWING or any(isinstance(one, Node) for one in node.args[1:]):
            return None
        found = view_of(node, given)
    except RuntimeError:  # it copies
        return None
    return found if found.shape == node.meta["val"].shape else None


def _yields_rows(node: Node) -> bool:
    return "operation" in node.meta and bool(node.meta["operation"].yields_rows)
