"""The times of one trial: when the loop asked for each batch, and when it got it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

LEAST_SECONDS = 0.25
"""The least seconds of a trial. A shorter one measures the scheduler of the system."""

MOST_BATCHES = 40
"""A trial of few workers ends after this many batches, however short they are."""


def most_batches(workers: int) -> int:
    """Return how many batches a trial takes at most."""
    return max(MOST_BATCHES, 4 * workers)


@dataclass(slots=True)
class TrialTimes:
    """The times of the batches of one trial.

    Batches are taken in groups, with as many batches as workers. Workers finish their batches
    together, so single batches are late and early in turn, and only whole groups can be compared.
    The first group contains the start of the workers, so it does not count for the steady time. It
    counts for the cost of an epoch, which starts workers once.

    A step in which bestof tries kernels is slower than later ones, and waits for less of its time.
    So batches up to the last trial of a kernel, or the last that the budget has put off, do not
    count either, but at most `most_skipped`.
    """

    workers: int
    most_batches: int
    most_skipped: int = 0
    kernel_trials: int = 0
    skipped: int = 0
    asked: list[float] = field(default_factory=list)
    got: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)

    def ask(self, now: float, kernel_trials: int = 0) -> None:
        """Note that the loop asks for a batch, which ends the time of the previous batch.

        kernel_trials: how many trials of kernels the program has made so far, or put off.
        """
        self.asked.append(now)
        if kernel_trials != self.kernel_trials and self._ended() <= self.most_skipped:
            self.skipped = self._ended()
        self.kernel_trials = kernel_trials

    def get(self, now: float, samples: int) -> None:
        """Note that the loop got the batch, with this many samples."""
        self.got.append(now)
        self.samples.append(samples)

    @property
    def batches(self) -> int:
        """The number of batches that the loop has got."""
        return len(self.got)

    @property
    def complete(self) -> bool:
        """Whether the trial has enough groups and seconds, or has used up its batches."""
        groups = self._groups()
        if not groups:
            return False
        if self._ended() - self.skipped >= self.most_batches:
            return True
        # A group of one batch is small, so more groups are needed.
        least = 5 if self._size() == 1 else 3 if self._size() <= 8 else 2
        return len(groups) >= least and sum(seconds for seconds, _ in groups) >= LEAST_SECONDS

    def seconds_a_sample(self) -> float | None:
        """The median over the groups that count, or None without one."""
        groups = self._groups()
        return median(seconds / samples for seconds, samples in groups) if groups else None

    def seconds_of_all(self) -> float | None:
        """The seconds per sample of the whole trial, with its start, or None without a batch."""
        if not self.got:
            return None
        return (max(self.asked[-1], self.got[-1]) - self.asked[0]) / max(1, sum(self.samples))

    def start(self) -> float:
        """The seconds that the loop waited for the first group, minus those for a later group."""
        size = self._size()
        waits = [got - asked for got, asked in zip(self.got, self.asked, strict=False)]
        later = [sum(waits[i : i + size]) for i in range(size, len(waits) - size + 1, size)]
        return max(0.0, sum(waits[:size]) - (median(later) if later else 0.0))

    def waiting(self) -> float:
        """The part of the steady time that the loop waited for batches."""
        first, ended = self._first(), self._ended()
        if ended <= first:
            return 0.0
        waited = sum(self.got[i] - self.asked[i] for i in range(first, ended))
        return waited / max(1e-9, self.asked[ended] - self.asked[first])

    def _size(self) -> int:
        return max(1, self.workers)

    def _first(self) -> int:
        """Return the first batch that counts. It begins a group."""
        size = self._size()
        return size * max(1, -(-self.skipped // size))

    def _ended(self) -> int:
        """Return how many batches the loop has got and used."""
        return min(len(self.asked) - 1, len(self.got)) if self.asked else 0

    def _groups(self) -> list[tuple[float, int]]:
        """Return the seconds and samples of each whole group that counts."""
        size = self._size()
        return [
            (self.asked[i + size] - self.asked[i], max(1, sum(self.samples[i : i + size])))
            for i in range(self._first(), self._ended() - size + 1, size)
        ]
