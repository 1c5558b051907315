"""More threads than the process may use, or than its neighbours leave."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap, Treatment
from bestof.view.quantity import plural


class Threads(Trap):
    """Tries the threads that fit; if none are too many, half of them."""

    name = "threads"

    def treatment(self, seen: Seen) -> Treatment | None:
        better = _better(seen)
        if better == seen.threads:
            return None
        before = seen.threads

        def apply() -> None:
            nonlocal before
            before = torch.get_num_threads()  # the program may have changed it
            torch.set_num_threads(better)

        return Treatment(apply, lambda: torch.set_num_threads(before))

    def findings(self, seen: Seen) -> Sequence[Finding]:
        gain = seen.gains.get(self.name)
        better, room = _better(seen), seen.room
        excess = seen.threads > room.threads
        told = f"PyTorch computes on {plural(seen.threads, 'thread')}"
        told += f", but {room.limit}" if excess else f", and {room.threads} can run at once"
        if gain is not None:
            told += f"; {gain.told} ({plural(better, 'thread')})"
        caught = excess or (gain is not None and gain.is_real)
        cure = f"OMP_NUM_THREADS={better}, or torch.set_num_threads({better})"
        if excess:
            cure += ", or bestof.torch.enable()"
        return [
            Finding(self.name, caught, gain.factor if gain else None, told, cure if caught else "")
        ]


def _better(seen: Seen) -> int:
    if seen.threads > seen.room.threads:
        return seen.room.threads
    return max(1, seen.threads // 2)
