"""The state of one loader: the tried settings, the choice, and its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader, IterableDataset

from bestof.processors import processors_of_a_rank
from bestof.torch.process.data_loading.breakdown import Breakdown
from bestof.torch.process.data_loading.decoders import FasterDecoder, faster_decoder
from bestof.torch.process.data_loading.hill_climbing import HillClimbing
from bestof.torch.process.data_loading.room import objection
from bestof.torch.process.data_loading.segment import OwnSampler
from bestof.torch.process.data_loading.setting import Setting
from bestof.torch.process.data_loading.trial_times import TrialTimes, most_batches

Iterate: TypeAlias = Callable[[DataLoader[Any]], Iterator[Any]]
"""Makes the loader's own iterator."""

NO_BOTTLENECK = 0.03
"""A loop that waits for data for less than this part of its time keeps its setting, because there
is too little to gain."""

MOST_FAILURES = 2

MOST_CHOOSING = 200
"""The own setting is judged after so many batches at the latest, even if kernels are still being
chosen."""

PREFETCH = 2  # PyTorch's default

FAILED = float("inf")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of the search for one loader.

    steps, seconds: what all trials of the loader may take together. workers: the least and the
    highest number of workers to try; None stands for 0 and the number of allowed processors.
    fixed: take so many workers for a loader without any, and search nothing.
    """

    steps: int = 500
    seconds: float = 30.0
    workers: tuple[int, int] | None = None
    fixed: int | None = None


@dataclass(frozen=True, slots=True)
class LoaderTrial:
    """One trial.

    seconds: per sample in the whole loop, or None if the trial failed for this `reason`. waiting:
    the part of the time that the loop waited.
    """

    setting: Setting
    seconds: float | None
    waiting: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LoaderReport:
    """The result for one loader. `chosen` is None while it is being tuned."""

    dataset: str
    own: Setting
    chosen: Setting | None
    trials: tuple[LoaderTrial, ...]
    batches: int
    seconds: float
    reason: str
    breakdown: Breakdown | None
    decoder: FasterDecoder | None

    def lines(self) -> list[str]:
        """Return the report as lines of text. The first line is a summary."""
        own = next((one for one in self.trials if one.setting == self.own), None)
        waited = f", waited {100 * own.waiting:.0f} % of the time" if own else ""
        if self.chosen is None:
            why = _because(self.reason)
            lines = [f"{self.dataset}: {self.own}{waited}; not decided yet{why}"]
        elif self.chosen == self.own:
            lines = [f"{self.dataset}: left at {self.own}{waited}{_because(self.reason)}"]
        else:
            rate = self._rate(self.own), self._rate(self.chosen)
            lines = [
                f"{self.dataset}: {self.own} -> {self.chosen}: {rate[0]} -> {rate[1]} samples/s"
                f"{waited}; {len(self.trials)} trials in {self.seconds:.1f} s"
            ]
        if self.breakdown is not None:
            lines.append(f"a batch without workers: {self.breakdown}")
        if self.decoder is not None:
            lines.append(
                f"{self.decoder.call} is installed; it decodes {self.decoder.speedup:.1f} times as "
                "fast as Pillow"
            )
        failed = [f"{one.setting}: {one.reason}" for one in self.trials if one.seconds is None]
        return [*lines, *failed]

    def _rate(self, setting: Setting) -> str:
        times = [t.seconds for t in self.trials if t.setting == setting and t.seconds is not None]
        return f"{1 / max(1e-9, min(times)):.0f}" if times else "unknown"


def _reason(error: BaseException) -> str:
    """Return the error in one line.

    The error of a worker has the worker's traceback as its text, whose last line is the error.
    """
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught ") and len(lines) > 1:
        return f"{lines[-1]} (in a worker)"
    return f"{type(error).__name__}: {lines[0]}"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


@dataclass
class Tuning:
    """The search for one loader. `Epoch` asks it for settings and tells it times."""

    own: Setting
    iterable: bool
    dataset: str
    bounds: Bounds
    climb: HillClimbing
    chosen: Setting | None = None
    reason: str = ""
    trials: list[LoaderTrial] = field(default_factory=list)
    batches: int = 0
    seconds: float = 0.0
    choosing: Counter[Setting] = field(default_factory=Counter)  # batches while kernels were chosen
    failures: int = 0
    breakdown: Breakdown | None = None
    decoder: FasterDecoder | None = None
    profiled: bool = False  # whether a batch was profiled, or will be next
    one_batch: int = 0
    one_worker: int = 0
    epochs: int = 0
    sampler: OwnSampler | None = None
    ended: Any = None  # a weak reference that keeps the report when the loader is gone

    @classmethod
    def of(cls, loader: DataLoader[Any], bounds: Bounds) -> Tuning:
        """Begin the tuning of a loader, from its own setting."""
        own = Setting(loader.num_workers, loader.prefetch_factor, torch.get_num_threads())
        iterable = isinstance(loader.dataset, IterableDataset)
        share = processors_of_a_rank()
        # One worker keeps the order of an iterable dataset. Several interleave or repeat its
        # samples.
        least, most = bounds.workers or (0, share)
        most = min(most, share, 1 if iterable else share)
        climb = HillClimbing(own, share, most, least=min(least, most))
        tuning = cls(own, iterable, type(loader.dataset).__name__, bounds, climb)
        if iterable and own.workers > 1:
            tuning.leave("another number of workers would change the order of an iterable dataset")
        elif iterable and loader.persistent_workers:
            tuning.leave("workers that persist are not exchanged for an iterable dataset")
        return tuning

    def begin(self, loader: DataLoader[Any]) -> None:
        """Begin the first epoch. The program may have set its threads since it made the loader."""
        fresh = Tuning.of(loader, self.bounds)
        self.own, self.climb = fresh.own, fresh.climb
        if self.bounds.fixed is not None:
            self._fix(loader, self.bounds.fixed)
        elif self.chosen is not None:
            self.chosen = self.own

    def _fix(self, loader: DataLoader[Any], workers: int) -> None:
        self.leave("a recipe decides")
        if self.own.workers == 0 and not self.iterable:
            workers = min(workers, processors_of_a_rank())
            self.chosen = Setting(workers, PREFETCH, self.own.threads)
            self.apply(loader)

    def apply(self, loader: DataLoader[Any]) -> None:
        """Write the choice into the loader, where the program can read it."""
        if self.chosen is not None and not self.holds(loader):
            loader.num_workers, loader.prefetch_factor = self.chosen.workers, self.chosen.prefetch
            loader._iterator = None  # persistent workers still have their old number

    def holds(self, loader: DataLoader[Any]) -> bool:
        """Whether the loader still has the chosen setting. The program may have changed it."""
        chosen = self.chosen
        return (
            chosen is not None
            and chosen.workers == loader.num_workers
            and (chosen.workers == 0 or chosen.prefetch == loader.prefetch_factor)
        )

    def ask(self) -> Setting | None:
        """Return the setting to try, or None once there is a choice.

        Settings that do not fit into memory are skipped.
        """
        while self.chosen is None:
            setting = self.climb.ask()
            if setting is None:
                self._settle()
                break
            reason = objection(setting, self.one_batch, self.one_worker)
            if reason is None or setting == self.own:
                return setting
            self.trials.append(LoaderTrial(setting, None, reason=reason))
            self.climb.tell(FAILED)
        return None

    def may_choose(self, setting: Setting) -> int:
        """Return how many more batches need not count because kernels are being chosen.

        Another number of threads needs other kernels.
        """
        most = MOST_CHOOSING if setting == self.own else most_batches(setting.workers)
        return max(0, most - self.choosing[setting])

    @property
    def without_workers(self) -> Setting:
        """The setting to profile a batch with."""
        return Setting(0, None, self.own.threads)

    @property
    def wants_breakdown(self) -> bool:
        """Whether to profile a batch next: data is a bottleneck, and workers are not needed."""
        worked = (one.setting.workers == 0 and one.seconds is not None for one in self.trials)
        return not self.profiled and self.chosen is None and any(worked)

    def finish(self, setting: Setting, times: TrialTimes, epoch_samples: float | None) -> None:
        """Take the result of a trial.

        `epoch_samples` is the number of samples over which the start of the workers is spread. It
        is None if workers outlive epochs.
        """
        self._count(setting, times)
        self.choosing[setting] += times.skipped
        seconds = times.seconds_a_sample()
        if seconds is None and times.skipped and self.may_choose(setting) and not self._spent():
            return  # the next epoch tries it again, with more kernels chosen
        if seconds is None:
            seconds = times.seconds_of_all()
        elif epoch_samples and setting.workers:
            seconds += times.start() / epoch_samples
        if seconds is None:
            return
        waiting = times.waiting()
        self.trials.append(LoaderTrial(setting, seconds, waiting))
        if len(self.trials) == 1 and waiting < NO_BOTTLENECK:
            self.leave("the loader is no bottleneck")
            return
        self.climb.tell(seconds)
        if self._spent():
            self.climb.stop()

    def fail(self, setting: Setting, times: TrialTimes, error: BaseException) -> None:
        """Note that a setting failed. After the second failure, the best one so far is chosen."""
        self._count(setting, times)
        reason = _reason(error)
        self.trials.append(LoaderTrial(setting, None, reason=reason))
        self.failures += 1
        if self.chosen is not None:
            # It was chosen before it failed.
            if self.failures >= MOST_FAILURES:
                self.chosen, self.reason = self.own, reason
            return
        self.climb.tell(FAILED)
        if self.failures >= MOST_FAILURES:
            self.climb.stop()

    def over(self, setting: Setting, times: TrialTimes) -> bool:
        """Return whether the current trial uses up what all trials may take."""
        free = self._free(setting, times)
        took = perf_counter() - times.asked[free] if free < len(times.asked) else 0.0
        return self.seconds + took >= self.bounds.seconds

    def leave(self, reason: str) -> None:
        """Keep the setting that the loader had."""
        self.chosen, self.reason = self.own, reason

    def noted(self, breakdown: Breakdown | None) -> None:
        """Take the breakdown of a batch. If decoding takes a fifth or more, look for a faster
        decoder."""
        self.breakdown = breakdown
        if breakdown is not None and breakdown.image and breakdown.shares["decode"] >= 0.2:
            began = perf_counter()
            self.decoder = faster_decoder(breakdown.image)
            self.seconds += perf_counter() - began

    def report(self) -> LoaderReport:
        """Return what is known so far."""
        return LoaderReport(
            *(self.dataset, self.own, self.chosen, tuple(self.trials), self.batches),
            *(self.seconds, self.reason, self.breakdown, self.decoder),
        )

    def _spent(self) -> bool:
        """Return whether the trials have used up what they may take together."""
        return self.batches >= self.bounds.steps or self.seconds >= self.bounds.seconds

    def _free(self, setting: Setting, times: TrialTimes) -> int:
        """Return the number of batches that cost the search nothing: the program would run them
        the same, and choose its kernels."""
        return times.skipped if setting == self.own else 0

    def _count(self, setting: Setting, times: TrialTimes) -> None:
        free = self._free(setting, times)
        self.batches += times.batches - free
        if times.asked:
            ended = max(times.asked[-1], times.got[-1] if times.got else 0)
            self.seconds += ended - times.asked[free]

    def _settle(self) -> None:
        self.chosen = self.climb.best
        if self.chosen == self.own:
            others = [one for one in self.trials if one.setting != self.own]
            if not others and self._spent():
                self.reason = "its own trial took all that trials may take"
            elif not others:
                self.reason = "no other setting is allowed"
            elif all(one.seconds is None for one in others):
                self.reason = "no other setting worked"
            else:
                self.reason = "no other setting was faster"
