"""Measure every row of the operations of eager calls, on examples of the operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

import torch

from bestof.accuracy import DEFAULT_ACCURACY, Accuracy
from bestof.bench.burst import burst
from bestof.bench.quartiles import Quartiles
from bestof.bench.row_time import RowTime
from bestof.errors import InvalidArgument
from bestof.torch.ops import table
from bestof.torch.ops.operation import Call, Operation
from bestof.torch.rows.entry_points import load_entry_points
from bestof.torch.rows.operation_verifier import OperationVerifier
from bestof.torch.rows.row_verifier import Expected


def measure_operations(
    names: Sequence[str] = (),
    *,
    rounds: int = 9,
    seconds: float = 0.02,
    level: Accuracy = DEFAULT_ACCURACY,
    clock: Callable[[], float] = perf_counter,
) -> tuple[RowTime, ...]:
    """Run every row that is tried for an example, in turn, and compare its first result.

    names: of operations; all of them if there are none. seconds: of each row in a round.
    Raises InvalidArgument for unknown operations, and for numbers that are not positive.
    """
    if rounds < 1 or not seconds > 0:
        raise InvalidArgument("rounds, seconds: expected positive numbers")
    load_entry_points()
    operations = [table.named(name, "bench operation") for name in names] or table.OPERATIONS
    return tuple(
        time for one in operations for time in _of_operation(one, rounds, seconds, level, clock)
    )


def _of_operation(
    operation: Operation[Any],
    rounds: int,
    seconds: float,
    level: Accuracy,
    clock: Callable[[], float],
) -> Iterable[RowTime]:
    kernels = [torch.library.get_kernel(name, "CPU") for name in operation.operators]
    verifier = OperationVerifier(operation, operation.original(kernels))
    with torch.no_grad():
        for example, arguments in operation.examples().items():
            call = operation.call(level, *arguments)
            if call is not None:
                runs = _runs(operation, verifier, call)
                wrong = {name: _compared(verifier, name, call) for name in runs}
                times: dict[str, list[float]] = {name: [] for name in runs}
                for _ in range(rounds):
                    for name, run in runs.items():
                        times[name].append(burst(run, seconds, clock))
                own = times[operation.rows[0].name]
                for name, taken in times.items():
                    ratio = Quartiles.of([one / mine for one, mine in zip(own, taken, strict=True)])
                    yield RowTime(
                        operation.name,
                        example,
                        str(call.problem),
                        name,
                        torch.get_num_threads(),
                        Quartiles.of(taken).middle,
                        ratio.middle,
                        ratio.spread,
                        wrong[name],
                    )


def _runs(
    operation: Operation[Any], verifier: OperationVerifier, call: Call
) -> dict[str, Callable[[], Any]]:
    args = (call.problem, *call.operands)
    return {
        row.name: lambda name=row.name: verifier.run(name, 0, args)  # type: ignore[misc]
        for row in operation.rows
        if row.is_tried(call.problem)
    }


def _compared(verifier: OperationVerifier, name: str, call: Call) -> str | None:
    args = (call.problem, *call.operands)
    if verifier.trusts(name):
        return None
    expected = verifier.expect(0, args)
    assert isinstance(expected, Expected)  # nothing is captured into a graph
    return verifier.judge(name, 0, args, expected, verifier.run(name, 0, args)).wrong
