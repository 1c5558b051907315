"""Runs a rank for `bestof scale`: `-m bestof.cli.scale_trial PROCESSORS ORDERS REPORTS script ...`.

ORDERS and REPORTS are file descriptors of the parent process, which is PyTorch's launcher: it
starts its ranks without them. Rank 0 opens them, waits there between turns, and reports its times.
The other ranks wait for rank 0 in their next collective operation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from bestof.cli.after_import import after_import
from bestof.cli.pinned import pin
from bestof.cli.scale_launcher import LAUNCHER
from bestof.cli.script import find_module, find_script, split_arguments
from bestof.recipe.channel import Channel
from bestof.scale.process_memory import process_memory
from bestof.worker.end_with import end_with


def main(argv: Sequence[str]) -> int:
    """Run the script that the arguments name."""
    launcher = int(os.environ.pop(LAUNCHER))
    # A rank has a session of its own. It must not outlive a launcher that is killed.
    if not end_with(launcher):
        return 1
    pin(argv[0])
    _, module, rest = split_arguments(argv[3:], ())
    script = find_module(rest[0], rest[1:]) if module else find_script(rest[0], rest[1:])
    if os.environ["RANK"] != "0":
        return script.run()
    orders = os.open(f"/proc/{launcher}/fd/{argv[1]}", os.O_RDONLY)
    reports = os.open(f"/proc/{launcher}/fd/{argv[2]}", os.O_WRONLY)
    channel = Channel("bestof scale", orders, reports)
    return script.run(partial(after_import, "torch", partial(_begin, channel)))


def _begin(channel: Channel) -> None:
    from torch import distributed  # noqa: PLC0415 - the program has imported torch

    from bestof.recipe.step_clock import StepClock  # noqa: PLC0415 - as above

    base = process_memory("VmRSS")
    before: int | None = None

    def pause(seconds: float | None) -> float:
        nonlocal before
        together = distributed.is_available() and distributed.is_initialized()
        now = exchanges() if together else None
        report: dict[str, Any] = {
            "seconds": seconds,
            "trials": 0,
            "chosen": [],
            "facts": asdict(clock.facts()),
            "world": distributed.get_world_size() if together else 1,
            "exchanges": None if now is None or before is None else now - before,
            "memory": process_memory("VmHWM"),
            "base": base,
        }
        before = now
        return channel.exchange(report)

    clock = StepClock(pause)
    clock.start()


def exchanges() -> int | None:
    """Return how many operations of torch.distributed this rank has called, in all groups.

    DistributedDataParallel's are among them. None if PyTorch or a backend does not count them.
    """
    from torch.distributed import distributed_c10d  # noqa: PLC0415 - the program has imported torch

    try:
        groups: list[Any] = list(distributed_c10d._world.pg_map)  # PyTorch's stubs lack the method
        return sum(int(group._get_sequence_number_for_group()) for group in groups)
    except (AttributeError, RuntimeError):  # no public function tells the numbers
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
