"""What live checks cost, and which planted faults they find.

    python benchmarks/live_checks.py [--seconds 60] [--only gelu]

Each operation of the table with an example gets a fast planted row. It is wrong from the first
call, or turns wrong after so many seconds. Columns: the wrong results that the program got; after
how many calls the fault was found, within as many seconds; the share of the time that live checks
took while the row was right. Promised: each first fault within 100 calls, each later one within a
minute, for 1 % of the time.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import bestof.torch as bt
from bestof.selection.identity.host import host
from bestof.selection.state.live_checks import LiveChecks
from bestof.selection.state.registry import Defaults
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.row import Row
from bestof.torch.ops.table import OPERATIONS
from bestof.torch.rows.row_selector import row_selector

CALLS = 100  # within which the first faults must be found
SLOWER = 1.0  # times its own time, by which PyTorch's own kernel is made slower


class Planted:
    """An operation with two rows: PyTorch's own kernel, made slower, and a planted one."""

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation, self.is_wrong = operation, False
        rows = operation.rows
        self._first = rows[0].function
        bound = next((row.bound for row in rows if row.bound is not None), None)
        dtypes = next((row.dtypes for row in rows if row.dtypes is not None), None)
        operation.rows = (
            Row(rows[0].name, self._slow),
            Row("planted", self._planted, bound=bound, dtypes=dtypes),
        )

    def _slow(self, *arguments: Any) -> Any:
        began = time.perf_counter()
        found = self._first(*arguments)
        time.sleep(SLOWER * (time.perf_counter() - began) + 0.002)
        return found

    def _planted(self, *arguments: Any) -> Any:
        found = self._first(*arguments)
        if not self.is_wrong:
            return found
        if isinstance(found, Tensor):
            return found * 1.1 + 0.1
        return (found[0] * 1.1 + 0.1, *found[1:])

    @property
    def is_found(self) -> bool:
        problems = row_selector(self.operation).selector.report().problems
        return any(one.status == "disqualified" for each in problems for one in each.alternatives)


def is_right(got: Any, right: Any) -> bool:
    pairs = [(got, right)] if isinstance(right, Tensor) else zip(got, right, strict=True)
    return all(one is None or torch.allclose(one, other, 1e-3, 1e-3) for one, other in pairs)


def run(
    planted: Planted, call: Callable[[], Any], later: bool, seconds: float
) -> tuple[int, int, float]:
    """Return the number of wrong results, that of calls until the fault was found (-1 if never),
    and the share of the time that live checks took while all was right.
    """
    right, checks = call(), Defaults.live_checks
    with bt.enabled({"kernel": {"budget": None}}):
        end = time.perf_counter() + seconds
        while later and time.perf_counter() < end:
            call()
        share, end = checks.spent / checks.seconds, time.perf_counter() + seconds
        planted.is_wrong, wrong, calls = True, 0, 0
        while not planted.is_found and time.perf_counter() < end:
            calls += 1
            wrong += not is_right(call(), right)
        return wrong, calls if planted.is_found else -1, share


def measure(operations: Sequence[Operation[Any]], later: bool, seconds: float) -> None:
    found = 0
    print(f"\nwrong {'once chosen' if later else 'from the first call'}")
    print(f"{'operation':28} {'wrong':>6} {'found after':>12} {'share':>7}")
    for operation in operations:
        fresh = type(operation)()
        Defaults.live_checks = LiveChecks()
        planted, selector = Planted(fresh), row_selector(fresh).selector
        arguments = next(iter(operation.examples().values()))
        given = fresh.call("float32", *arguments)
        assert given is not None
        call = partial(selector, given.problem, *given.operands)
        wrong, calls, share = run(planted, call, later, seconds)
        found += calls >= 0 and (later or calls <= CALLS)
        told = "not found" if calls < 0 else f"{calls} calls"
        print(f"{operation.name:28} {wrong:6} {told:>12} {share:7.2%}")
    print(f"found: {found} of {len(operations)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", metavar="NAME", help="the operation of this name")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    Defaults.budget.is_on = False  # the planted row is to be chosen soon
    print(f"{host()}, {torch.get_num_threads()} threads")
    operations = [one for one in OPERATIONS if options.only in (None, one.name)]
    for later in (False, True):
        measure(operations, later, options.seconds)


if __name__ == "__main__":
    main()
