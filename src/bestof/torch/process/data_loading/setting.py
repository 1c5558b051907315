"""The setting of a loader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """`workers` is `num_workers`. `prefetch` is `prefetch_factor`, or None without workers.

    `threads` is the number of threads of the computing process.
    """

    workers: int
    prefetch: int | None
    threads: int

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        if self.workers == 0:
            return f"no workers, {threads}"
        workers = f"{self.workers} worker{'s' * (self.workers != 1)}"
        return f"{workers} x {self.prefetch} batches, {threads}"
