"""Replaces methods of DataLoader while bestof tunes data loading."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from functools import partial, update_wrapper
from typing import Any, ClassVar

from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe, get_worker_info

from bestof.torch.process.data_loading.epoch import Epoch
from bestof.torch.process.data_loading.segment import SegmentLoader
from bestof.torch.process.data_loading.stream import StreamEpoch
from bestof.torch.process.data_loading.tuning import Bounds, LoaderReport, Tuning

_original_init = DataLoader.__init__
_original_iterate = DataLoader.__iter__

_MOST_FINISHED = 20


class _State:
    process = os.getpid()
    bounds: Bounds | None = None  # the bounds for new loaders; None: they are not tuned
    loaders: ClassVar[weakref.WeakKeyDictionary[DataLoader[Any], Tuning]] = (
        weakref.WeakKeyDictionary()
    )
    below: ClassVar[dict[str, Callable[..., Any]]] = {}  # the methods that bestof's call, by name
    asked_for: ClassVar[weakref.WeakSet[DataLoader[Any]]] = weakref.WeakSet()
    # Trials of two loaders at the same time would disturb each other.
    finished: ClassVar[list[LoaderReport]] = []  # reports of loaders that no longer exist
    trying: weakref.ref[Epoch | StreamEpoch] | None = None


def follow(bounds: Bounds | None) -> None:
    """Tune every new loader of a map-style dataset. None ends this."""
    _State.bounds = bounds
    if bounds is None:
        for loader in list(_State.loaders):
            if loader not in _State.asked_for:
                del _State.loaders[loader]
    _install()


def arm(loader: DataLoader[Any], bounds: Bounds) -> Tuning:
    """Tune this loader from its next epoch on."""
    tuning = Tuning.of(loader, bounds)
    _watch(loader, tuning)
    if isinstance(loader.dataset, (IterDataPipe, MapDataPipe)):
        tuning.leave("data pipes are not tuned")
    _State.asked_for.add(loader)
    _install()
    return tuning


def tunings() -> list[Tuning]:
    """Return the tunings of the live loaders."""
    return list(_State.loaders.values())


def data_loading_lines() -> list[str]:
    """Return the report of every loader that had an epoch.

    The first line of each report begins with "loader".
    """
    reports = [*_State.finished, *(one.report() for one in tunings() if one.epochs)]
    lines = []
    for report in reports:
        first, *rest = report.lines()
        lines.extend([f"loader {first}", *(f"  {line}" for line in rest)])
    return lines


def _watch(loader: DataLoader[Any], tuning: Tuning) -> None:
    _State.loaders[loader] = tuning
    # A loader may end with the function that made it. Its report is still needed at the end of the
    # program. A loader in a cycle may end while the exit functions run, when `weakref.finalize`
    # does nothing any more.
    tuning.ended = weakref.ref(loader, partial(_keep, tuning))


def _keep(tuning: Tuning, _loader: object) -> None:
    if tuning.epochs:
        _State.finished = [*_State.finished[1 - _MOST_FINISHED :], tuning.report()]


def _install() -> None:
    """Put bestof's methods into DataLoader, or take them out.

    Other libraries replace these methods too. bestof's method calls the one that it found. If
    another library has replaced bestof's method since, that replacement stays.
    """
    needed = _State.bounds is not None or len(_State.loaders) > 0
    for name, method in (("__init__", _made), ("__iter__", _iterated)):
        present = getattr(DataLoader, name)
        below = _State.below.get(name)
        if needed and present is not method and below in (None, present):
            _State.below[name] = present
            setattr(DataLoader, name, update_wrapper(method, present))
        elif not needed and present is method:
            setattr(DataLoader, name, _State.below.pop(name))


def _iterate(loader: DataLoader[Any]) -> Iterator[Any]:
    """Return the iterator that the loader gives without bestof."""
    iterator: Iterator[Any] = _State.below.get("__iter__", _original_iterate)(loader)
    return iterator


def _made(loader: DataLoader[Any], *args: Any, **options: Any) -> None:
    init: Callable[..., None] = _State.below.get("__init__", _original_init)
    init(loader, *args, **options)
    bounds = _State.bounds
    if bounds is None or _foreign(loader) or loader._dataset_kind != 0:
        return
    if not isinstance(loader.dataset, MapDataPipe):
        _watch(loader, Tuning.of(loader, bounds))


def _iterated(loader: DataLoader[Any]) -> Iterator[Any]:
    tuning = _State.loaders.get(loader)
    if tuning is None or _foreign(loader):
        return _iterate(loader)
    if tuning.epochs == 0:
        tuning.begin(loader)
    tuning.ask()
    chosen = tuning.chosen
    if chosen == tuning.own or (chosen is not None and not tuning.holds(loader)):
        return _iterate(loader)
    if chosen is None:
        other = None if _State.trying is None else _State.trying()
        if other is not None and other.tries:
            return _iterate(loader)
    elif tuning.iterable or (loader.persistent_workers and chosen.workers):
        return StreamEpoch(loader, tuning, _iterate)
    epoch = (StreamEpoch if tuning.iterable else Epoch)(loader, tuning, _iterate)
    if epoch.tries:
        _State.trying = weakref.ref(epoch)
    return epoch


def _foreign(loader: DataLoader[Any]) -> bool:
    """Return whether bestof must not tune this loader.

    This is so for the loader of a segment, and in workers and forked processes.
    """
    return (
        isinstance(loader, SegmentLoader)
        or _State.process != os.getpid()
        or get_worker_info() is not None
    )
