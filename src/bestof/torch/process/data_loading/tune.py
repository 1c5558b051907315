"""`bt.tune_dataloader`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy
import torch
from torch.utils.data import DataLoader

from bestof.errors import InvalidArgument
from bestof.torch.process.data_loading.interception import arm
from bestof.torch.process.data_loading.tuning import Bounds

_Loader = TypeVar("_Loader", bound="DataLoader[Any]")


def tune_dataloader(
    loader: _Loader,
    step: Callable[[Any], object] | None = None,
    *,
    tuning_steps: int = 500,
    seconds: float = 30.0,
) -> _Loader:
    """Find the fastest workers, prefetch factor and computing threads for a loader. Return the
    loader.

    Without `step`, the next epochs of the program are the trials, so no work is done twice. `step`
    is a function that treats a batch as a training step does. With it, the search is done before
    this call returns, and the state of the random generators is restored. In both cases the order
    of samples is that of the loader.

    tuning_steps: the most batches that all trials may take together.
    seconds: the most seconds that they may take.

    Raises InvalidArgument for anything but a DataLoader, and for bounds that are not positive.
    """
    if not isinstance(loader, DataLoader):
        raise InvalidArgument(
            f"tune_dataloader: loader: expected a torch.utils.data.DataLoader; got {loader!r}"
        )
    if step is not None and not callable(step):
        raise InvalidArgument(f"tune_dataloader: step: expected a function; got {step!r}")
    if isinstance(tuning_steps, bool) or not isinstance(tuning_steps, int) or tuning_steps < 1:
        raise InvalidArgument(
            "tune_dataloader: tuning_steps: expected a whole number, 1 or more; got "
            f"{tuning_steps!r}"
        )
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise InvalidArgument(
            f"tune_dataloader: seconds: expected a positive number; got {seconds!r}"
        )
    tuning = arm(loader, Bounds(tuning_steps, float(seconds)))
    if step is not None:
        with _same_random_state(loader):
            while tuning.chosen is None:
                before = tuning.batches, tuning.choosing.total()
                for batch in loader:
                    step(batch)
                    if tuning.chosen is not None:
                        break
                if (tuning.batches, tuning.choosing.total()) == before:
                    tuning.leave("an epoch has too few batches to measure")
    return loader


@contextmanager
def _same_random_state(loader: DataLoader[Any]) -> Iterator[None]:
    generators = {
        id(one): one
        for one in (
            loader.generator,
            getattr(loader.sampler, "generator", None),
            getattr(loader.batch_sampler, "generator", None),
        )
        if isinstance(one, torch.Generator)
    }
    states = {key: one.get_state() for key, one in generators.items()}
    state = torch.get_rng_state(), numpy.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(state[0])
        numpy.random.set_state(state[1])
        random.setstate(state[2])
        for key, one in generators.items():
            one.set_state(states[key])
