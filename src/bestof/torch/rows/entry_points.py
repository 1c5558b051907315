"""Rows that installed packages register, by entry points of the group `bestof.alternatives`."""

from __future__ import annotations

from bestof.selection.interrupts import reraise_from_outside
from bestof.selection.notice import warn
from bestof.torch.ops import table
from bestof.torch.process.fork_lock import ForkLock
from bestof.torch.rows.register import take_rows

GROUP = "bestof.alternatives"


class _State:
    lock = ForkLock()  # held while packages register, so that no thread goes on without their rows
    is_loaded = False


def load_entry_points() -> None:
    """Call the function of each entry point, which registers rows. Only the first call does so.

    If a function fails, one line tells so, and the rows of this function are left out.
    """
    with _State.lock:
        if _State.is_loaded:
            return
        _State.is_loaded = True
        from importlib.metadata import entry_points  # noqa: PLC0415 - it is slow to import

        for one in entry_points(group=GROUP):
            before = {operation: operation.rows for operation in table.OPERATIONS}
            try:
                one.load()()
            except (Exception, SystemExit) as error:
                reraise_from_outside()
                for operation, rows in before.items():
                    take_rows(operation, rows)
                package = "" if one.dist is None else f" of {one.dist.name}"
                warn(
                    f"the entry point {one.name} = {one.value}{package} in the group {GROUP} was "
                    f"left out: {type(error).__name__}: {error}"
                )
