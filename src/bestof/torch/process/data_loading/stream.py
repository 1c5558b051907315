"""One epoch of an iterable dataset.

A stream cannot change its workers in the middle, so a trial is a whole epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

from torch.utils.data import DataLoader

from bestof.selection.state.registry import search_count
from bestof.torch.process.data_loading.computing_threads import ComputingThreads
from bestof.torch.process.data_loading.room import batch_bytes
from bestof.torch.process.data_loading.setting import Setting
from bestof.torch.process.data_loading.trial_times import TrialTimes
from bestof.torch.process.data_loading.tuning import Iterate, Tuning

_MOST_NOTED = 10_000
"""The most batches whose times are kept. A stream may have no end."""


class StreamEpoch:
    """An iterator over the batches of one epoch, all with one setting."""

    def __init__(self, loader: DataLoader[Any], tuning: Tuning, iterate: Iterate) -> None:
        self._loader = loader
        self._tuning = tuning
        asked = tuning.ask()
        self._setting = asked or tuning.chosen or tuning.own
        self._times = None if asked is None else self._begun()
        self._threads = ComputingThreads()
        self._threads.use(self._setting.threads)
        if self._times is not None:
            self._times.ask(perf_counter(), search_count())
        tuning.epochs += 1
        self._source = started(loader, self._setting, iterate)

    def __iter__(self) -> StreamEpoch:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        times = self._times
        if times is not None and times.batches:
            times.ask(perf_counter(), search_count())
        try:
            batch = next(self._source)
        except StopIteration:
            if times is not None:
                self._tuning.finish(self._setting, times, None)
                self._tuning.ask()
                self._tuning.apply(self._loader)
            self._close()
            raise
        except Exception as error:
            if self._setting != self._tuning.own:
                self._tuning.leave(f"{self._setting} failed: {type(error).__name__}")
            self._close()
            raise
        if times is not None and times.batches < _MOST_NOTED:
            times.get(perf_counter(), 1)
            self._tuning.one_batch = self._tuning.one_batch or batch_bytes(batch)
        return batch

    def __del__(self) -> None:
        self._threads.restore()

    @property
    def tries(self) -> bool:
        return self._times is not None

    def _begun(self) -> TrialTimes:
        skipped = self._tuning.may_choose(self._setting)
        return TrialTimes(self._setting.workers, _MOST_NOTED, skipped, search_count())

    def _close(self) -> None:
        self._times = None
        self._threads.restore()


def started(loader: DataLoader[Any], setting: Setting, iterate: Iterate) -> Iterator[Any]:
    """Return the loader's own iterator, made with another setting."""
    before = loader.num_workers, loader.prefetch_factor
    loader.num_workers, loader.prefetch_factor = setting.workers, setting.prefetch
    try:
        return iterate(loader)
    finally:
        loader.num_workers, loader.prefetch_factor = before
