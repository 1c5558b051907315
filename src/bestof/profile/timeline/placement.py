"""Finds the operation of PyTorch that issued each line of a log.

A line of oneDNN has a time. It belongs to the innermost operation that was running when the line
began. If several threads were inside of operations, the line belongs to one that could issue it,
whose operands have most of its sizes, and whose thread was free: a thread computes one line at a
time. A line of MKL has no time. It lies between its neighbours of oneDNN, and its sizes are those
of an operand of the operation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bestof.profile.timeline.operation import Operation
from bestof.profile.verbose.line import Line
from bestof.profile.verbose.work import sizes_of

# A line may begin this many nanoseconds outside of its operation, because two clocks are read.
_SLACK = 3_000

# Operations that call one matrix product, and those that call any number of them.
_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("addmm", "addmm_", "mm", "bmm", "baddbmm", "baddbmm_", "addmv", "addmv_", "mv", "dot"),
        *("_addmm_activation", "addbmm", "_int_mm"),
    )
)
# A line with an unknown operation must not take one that is far away.
_AHEAD = 16
_MANY_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("_scaled_dot_product_flash_attention_for_cpu", "_slow_conv2d_forward"),
        *("_slow_conv2d_backward", "slow_conv3d_forward", "_convolution", "convolution_backward"),
        *("_scaled_dot_product_flash_attention_for_cpu_backward", "slow_conv_transpose2d"),
        *(
            "slow_conv_dilated2d",
            "_nested_tensor_softmax_with_shape",
            "linalg_solve_ex",
            "_cdist_forward",
        ),
    )
)
# If several threads were inside an operation, the one inside one of these issued the line.
_ISSUERS = ("conv", "mkldnn", "onednn", "linear", "mm", "matmul", "lstm", "gru", "attention")


@dataclass(slots=True, eq=False)
class Placed:
    """A line, its interval in nanoseconds since the epoch, and its operation, or None if
    unknown."""

    line: Line
    start: int
    end: int
    operation: Operation | None


def place(lines: Sequence[Line], operations: Sequence[Operation]) -> list[Placed]:
    """Place each line.

    Lines have the order of the log. Operations have the order in which they began.
    """
    threads: dict[int, list[Operation]] = {}
    for one in operations:
        if not one.annotation:
            threads.setdefault(one.thread, []).append(one)
    starts = {thread: [one.start for one in own] for thread, own in threads.items()}
    products = [one for one in operations if one.name in _PRODUCTS or one.name in _MANY_PRODUCTS]
    bounds = _bounds(lines)
    busy: dict[int, int] = {}  # until when a thread computes its last line
    placed, next_product = [], 0
    for line, (low, high) in zip(lines, bounds, strict=True):
        if line.began is not None:
            start = round(line.began * 1e9)
            end = start + round(line.seconds * 1e9)
            owner = _at(line, start, end, threads, starts, busy)
            if owner is not None:
                busy[owner.thread] = end
            placed.append(Placed(line, start, end, owner))
            continue
        found = _product(line, products, next_product, low, high)
        if found is None:
            placed.append(Placed(line, low, low, None))
            continue
        product = products[found]
        next_product = found + 1 if product.name in _PRODUCTS else found
        # The product comes last in its operation. Lines before it prepare the operands.
        start = max(product.start, product.end - round(line.seconds * 1e9))
        placed.append(Placed(_sized(line, product), start, product.end, product))
    return placed


def _sized(line: Line, owner: Operation) -> Line:
    """Return the line with the sizes of its operands. MKL prints batches of products without
    sizes."""
    if sizes_of(line.problem).keys() >= {"m", "n", "k"}:
        return line
    shapes = ["x".join(map(str, shape)) for shape in owner.shapes if len(shape) == 3][-2:]
    return replace(line, problem=":".join(shapes)) if len(shapes) == 2 else line


def _bounds(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """Return, for each line, the end of the last timed line before it and the start of the next."""
    low, lows = 0, []
    for line in lines:
        lows.append(low)
        if line.began is not None:
            low = round((line.began + line.seconds) * 1e9)
    high, highs = 1 << 62, []
    for line in reversed(lines):
        highs.append(high)
        if line.began is not None:
            high = round(line.began * 1e9)
    return list(zip(lows, reversed(highs), strict=True))


def _at(
    line: Line,
    start: int,
    end: int,
    threads: dict[int, list[Operation]],
    starts: dict[int, list[int]],
    busy: Mapping[int, int],
) -> Operation | None:
    """Return the operation that issued a line: of each thread the innermost one, and of these the
    one that fits best. `busy` tells until when each thread computed its last line."""
    found: list[Operation] = []
    for thread, own in threads.items():
        index = bisect_right(starts[thread], start + _SLACK) - 1
        if index < 0:
            continue
        inner = next(
            (
                one
                for one in own[index].enclosing()
                if not one.annotation and one.end + _SLACK >= start
            ),
            None,
        )
        if inner is not None:
            found.append(inner)
    if len(found) < 2:
        return found[0] if found else None
    sizes = frozenset(sizes_of(line.problem).values())

    def fit(one: Operation) -> tuple[bool, bool, int, bool]:
        # One line at the wrong thread makes this thread look busy for the next one. So sizes count
        # first: on a loaded machine, 3 of 100 captures of two threads were wrong without.
        is_free = busy.get(one.thread, 0) <= start + _SLACK
        return _issues(one), one.end + _SLACK >= end, _shared(one, sizes), is_free

    return max(found, key=fit)


def _issues(operation: Operation) -> bool:
    return any(word in operation.name for word in _ISSUERS)


def _shared(operation: Operation, sizes: frozenset[int]) -> int:
    """Return how many sizes of a line the operands of an operation have."""
    return len(sizes.intersection(axis for shape in operation.shapes for axis in shape))


def _product(
    line: Line, products: Sequence[Operation], first: int, low: int, high: int
) -> int | None:
    """Return the index of the operation whose operands have the sizes of the line.

    Without one, return that of an operation that calls any products.
    """
    wanted = {value for value in sizes_of(line.problem).values() if value > 1}
    fallback = None
    looked = 0
    for index in range(first, len(products)):
        one = products[index]
        if one.start > high:
            break
        if one.end + _SLACK < low:
            continue
        looked += 1
        if looked > _AHEAD:
            break
        if one.name in _PRODUCTS:
            # The operation encloses the product.
            encloses = one.end - one.start + _SLACK >= line.seconds * 1e9
            axes = {axis for shape in one.shapes[:3] if shape for axis in shape}
            if encloses and wanted <= axes:
                return index
        elif fallback is None:
            fallback = index
    return fallback
