"""The times of one trial: when the loop asked for each batch, and when it got it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

LEAST_SECONDS = 0.25
"""A trial lasts this long at least: shorter ones measure the scheduler."""


@dataclass(slots=True)
class TrialTimes:
    """The times of the batches of one trial; a group is as many batches as there are workers.

    Workers finish their batches together, so single batches are late and early by turns and only
    whole groups are comparable. The first group holds the start of the workers and is no part of
    the steady time. It is a part of the cost of an epoch, which starts workers once.
    """

    workers: int
    most_batches: int
    asked: list[float] = field(default_factory=list)
    got: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)

    def ask(self, now: float) -> None:
        """Note that the loop asks for a batch; this ends the time of the batch before."""
        self.asked.append(now)

    def get(self, now: float, samples: int) -> None:
        """Note that the loop got the batch, which holds so many samples."""
        self.got.append(now)
        self.samples.append(samples)

    @property
    def batches(self) -> int:
        """Return how many batches the loop has got."""
        return len(self.got)

    @property
    def complete(self) -> bool:
        """Return whether the trial has groups and seconds enough, or has used up its batches."""
        groups = self._groups()
        if not groups:
            return False
        if self._ended() >= self.most_batches:
            return True
        # A batch each is a small group, so more of them are needed.
        least = 5 if self._size() == 1 else 3 if self._size() <= 8 else 2
        return len(groups) >= least and sum(seconds for seconds, _ in groups) >= LEAST_SECONDS

    def seconds_a_sample(self) -> float | None:
        """Return the median over the groups, or None if there is no whole group behind the
        first."""
        groups = self._groups()
        return median(seconds / samples for seconds, samples in groups) if groups else None

    def seconds_of_all(self) -> float | None:
        """Return the seconds a sample of the whole trial, the start included; None if there was no
        batch."""
        if not self.got:
            return None
        return (max(self.asked[-1], self.got[-1]) - self.asked[0]) / max(1, sum(self.samples))

    def start(self) -> float:
        """Return the seconds that the loop waited for the first group, beyond those of a later
        one."""
        size = self._size()
        waits = [got - asked for got, asked in zip(self.got, self.asked, strict=False)]
        later = [sum(waits[i : i + size]) for i in range(size, len(waits) - size + 1, size)]
        return max(0.0, sum(waits[:size]) - (median(later) if later else 0.0))

    def waiting(self) -> float:
        """Return the part of the steady time that the loop waited for batches."""
        size, ended = self._size(), self._ended()
        if ended <= size:
            return 0.0
        waited = sum(self.got[i] - self.asked[i] for i in range(size, ended))
        return waited / max(1e-9, self.asked[ended] - self.asked[size])

    def _size(self) -> int:
        return max(1, self.workers)

    def _ended(self) -> int:
        """Return how many batches the loop has got and used."""
        return min(len(self.asked) - 1, len(self.got)) if self.asked else 0

    def _groups(self) -> list[tuple[float, int]]:
        """Return seconds and samples of each whole group behind the first."""
        size = self._size()
        return [
            (self.asked[i + size] - self.asked[i], max(1, sum(self.samples[i : i + size])))
            for i in range(size, self._ended() - size + 1, size)
        ]
