"""One epoch of a map-style dataset while its loader is tuned.

`Epoch` is the iterator that the user's loop gets. It cuts the epoch into consecutive segments, each
with its own setting. All segments draw from one order of samples, so the loop gets the same batches
as without tuning.

The first segment with the loader's own setting is PyTorch's own iterator, unchanged. A loader that
keeps its setting thus runs as without bestof, including the random numbers of its workers.

If a segment fails, its undelivered batches are made again with the own setting. An error of the
dataset then reaches the loop as without tuning. An error of the workers does not reach it.
"""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import active_children
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader

from bestof.selection.state.registry import search_count
from bestof.torch.process.data_loading.breakdown import profiled
from bestof.torch.process.data_loading.computing_threads import ComputingThreads
from bestof.torch.process.data_loading.room import batch_bytes, private_bytes
from bestof.torch.process.data_loading.sample_order import Gate, SampleOrder
from bestof.torch.process.data_loading.segment import OwnSampler, sampler_name, segment
from bestof.torch.process.data_loading.setting import Setting
from bestof.torch.process.data_loading.trial_times import TrialTimes, most_batches
from bestof.torch.process.data_loading.tuning import Iterate, Tuning

TRIAL_TIMEOUT = 60.0
"""Seconds after which a worker on trial counts as hung. A worker hangs, for example, if it was
forked while another thread held a lock."""


class _ReturnedOnly(Gate):
    """A gate that gives only what was put back into the sample order."""

    def __next__(self) -> Any:
        if not self._order.has_returned:
            raise StopIteration
        return super().__next__()


class Epoch:
    """An iterator over the batches of one epoch."""

    def __init__(self, loader: DataLoader[Any], tuning: Tuning, iterate: Iterate) -> None:
        self._loader = loader
        self._tuning = tuning
        self._threads = ComputingThreads()
        self._source: Iterator[Any] | None = None
        self._setting = tuning.own
        self._times: TrialTimes | None = None
        self._profiling = False
        self._ended = False
        self._first = True  # whether the segment is the first one of the epoch
        self._seeds = torch.Generator()
        self._children: list[int] = []
        own = tuning.ask() == tuning.own
        self._order, self._gate = self._begin_by_itself(iterate) if own else self._begin_order()
        tuning.epochs += 1

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        times = self._times
        if times is not None:
            if times.batches:  # the request for the first batch was noted when the trial began
                times.ask(perf_counter(), search_count())
            if times.complete or (times.batches and self._tuning.over(self._setting, times)):
                self._end_trial(times)
        batch, samples = self._deliver()
        if self._times is not None:
            self._times.get(perf_counter(), samples)
        return batch

    def __del__(self) -> None:
        self._threads.restore()

    @property
    def tries(self) -> bool:
        """Whether trials are going on."""
        return not self._ended and self._tuning.chosen is None

    def _begin_by_itself(self, iterate: Iterate) -> tuple[SampleOrder, Gate]:
        """Begin the epoch with the loader's own iterator, in a sample order."""
        loader, tuning = self._loader, self._tuning
        name = sampler_name(loader)
        if tuning.sampler is None:
            tuning.sampler = OwnSampler(getattr(loader, name))
            loader._iterator = None  # persistent workers still use the previous sampler
        self._begin_trial(tuning.own)
        tuning.sampler.armed, tuning.sampler.order, tuning.sampler.gate = True, None, None
        # DataLoader forbids setting its sampler, and reads it only while it makes an iterator.
        vars(loader)[name] = tuning.sampler
        try:
            self._source = iterate(loader)
        finally:
            vars(loader)[name] = tuning.sampler.sampler
            tuning.sampler.armed = False
        order, gate = tuning.sampler.order, tuning.sampler.gate
        if order is None or gate is None:
            # The class of the loader makes its own kind of iterator, which does not use the
            # sampler.
            tuning.leave("its iterator does not use its sampler")
            order = SampleOrder(iter(()))
            gate, order.dry = Gate(order), True
            self._times = None
        self._seeds.manual_seed(int(getattr(self._source, "_base_seed", 0)))
        return order, gate

    def _begin_order(self) -> tuple[SampleOrder, Gate]:
        """Begin the order of the epoch, with the random numbers of the loader's own iterator."""
        loader = self._loader
        indices = iter(getattr(loader, sampler_name(loader)))
        if not (loader.persistent_workers and self._tuning.own.workers and self._tuning.epochs):
            seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            self._seeds.manual_seed(int(seed.item()))
        order = SampleOrder(indices)
        return order, Gate(order)

    def _begin_trial(self, setting: Setting) -> None:
        left = max(1, self._tuning.bounds.steps - self._tuning.batches)
        most, skipped = most_batches(setting.workers), self._tuning.may_choose(setting)
        self._times = TrialTimes(setting.workers, min(left, most), skipped, search_count())
        self._times.ask(perf_counter(), search_count())
        self._setting = setting
        self._threads.use(setting.threads)

    def _open(self) -> None:
        """Begin the next segment.

        It is one of four: the undelivered batches of a failed segment, one batch that is profiled,
        the next trial, or the rest of the epoch.
        """
        tuning, timeout = self._tuning, float(self._loader.timeout)
        if self._order.has_returned:
            self._gate, self._setting, self._times = _ReturnedOnly(self._order), tuning.own, None
            self._threads.use(tuning.own.threads)
        elif tuning.wants_breakdown:
            # A segment of its own: an epoch may have no batch left behind the trial.
            self._gate, self._setting, self._times = Gate(self._order), tuning.without_workers, None
            self._threads.use(self._setting.threads)
            tuning.profiled = self._profiling = True
        else:
            self._gate = Gate(self._order)
            setting = tuning.ask()
            if setting is not None:
                self._begin_trial(setting)
                timeout = timeout or TRIAL_TIMEOUT
            else:
                assert tuning.chosen is not None
                self._setting, self._times = tuning.chosen, None
                self._threads.use(tuning.chosen.threads)
        before = {child.pid for child in active_children()}
        self._source = segment(self._loader, self._setting, self._gate, self._seeds, timeout)
        self._children = [
            child.pid
            for child in active_children()
            if child.pid is not None and child.pid not in before
        ]

    def _deliver(self) -> tuple[Any, int]:
        """Return the next batch and its number of samples."""
        while True:
            redoing = isinstance(self._gate, _ReturnedOnly)
            try:
                if self._source is None:
                    self._open()
                    redoing = isinstance(self._gate, _ReturnedOnly)
                batch = self._fetch()
            except StopIteration:
                if self._end_source():
                    continue
                self._ended = True
                self._threads.restore()
                raise
            except (
                Exception
                # any failure of a worker; an error of the dataset is raised again in the end
            ) as error:
                if redoing or self._setting == self._tuning.own:
                    self._gate.delivered()
                    raise
                self._give_up(error)
                continue
            samples = self._samples(self._gate.delivered())
            if not self._tuning.one_batch:
                self._tuning.one_batch = batch_bytes(batch)
            return batch, samples

    def _fetch(self) -> Any:
        assert self._source is not None
        if not self._profiling:
            return next(self._source)
        self._profiling = False
        self._gate.close_after_one()
        with profiled(self._loader.collate_fn) as breakdown:
            batch = next(self._source)
        self._tuning.noted(breakdown())
        return batch

    def _end_trial(self, times: TrialTimes) -> None:
        self._times = None
        tuning, setting = self._tuning, self._setting
        if self._children:
            tuning.one_worker = max(tuning.one_worker, private_bytes(self._children))
        tuning.finish(setting, times, self._epoch_samples(times))
        tuning.ask()
        tuning.apply(self._loader)
        if tuning.chosen == setting:
            return  # this segment continues to the end of the epoch
        self._gate.closed = True

    def _end_source(self) -> bool:
        """Note that the segment has ended. Return whether the epoch may continue."""
        self._source = None
        self._first, first = False, self._first
        times, self._times = self._times, None
        if times is not None and (first or times.complete):
            self._tuning.finish(self._setting, times, self._epoch_samples(times))
            self._tuning.ask()
            self._tuning.apply(self._loader)
        return self._order.has_returned or not self._order.dry

    def _give_up(self, error: Exception) -> None:
        """Drop the segment, and put back what it did not deliver."""
        error.__traceback__ = None  # its frames would keep the workers alive
        self._gate.give_back()
        self._source, self._first = None, False
        times = self._times or TrialTimes(self._setting.workers, 1)
        self._times = None
        self._tuning.fail(self._setting, times, error)
        self._tuning.apply(self._loader)

    def _samples(self, indices: Any) -> int:
        if self._loader.batch_sampler is None:
            return 1
        try:
            return len(indices)
        except TypeError:
            return self._loader.batch_size or 1

    def _epoch_samples(self, times: TrialTimes) -> float | None:
        if self._loader.persistent_workers:
            return None
        try:
            batches = len(self._loader)
        except TypeError:
            return None
        return batches * sum(times.samples) / max(1, times.batches)
