"""Loops over tuned loaders get the same batches, whatever the workers do."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, WeightedRandomSampler

from bestof.torch.process.data_loading import epoch, room, stream, trial_times, tuning
from bestof.torch.process.data_loading.interception import _State, arm, follow
from bestof.torch.process.data_loading.setting import Setting
from bestof.torch.process.data_loading.tuning import Bounds, Tuning

sys.path.insert(0, str(Path(__file__).parent))

from event_clock import EventClock
from loaders import (
    Augmented,
    DiesInWorkers,
    Numbers,
    Raises,
    RaisesInWorkers,
    Stream,
    UnevenBatches,
    add_one,
    wait_a_little,
)

Make = Callable[[], DataLoader[Any]]


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trials of few batches, so that an epoch holds several; workers are tried up to two.

    All settings cost the same, so every machine tries the same ones. Neither a slow start of a
    worker nor a lack of memory ends a search.
    """
    clock = EventClock()
    for module in (epoch, stream, tuning):
        monkeypatch.setattr(module, "perf_counter", clock)
    monkeypatch.setattr(epoch, "TRIAL_TIMEOUT", 1000.0)
    monkeypatch.setattr(room, "free_shared_memory", lambda: None)
    monkeypatch.setattr(room, "available_memory", lambda: None)
    monkeypatch.setattr(trial_times, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "NO_BOTTLENECK", -1.0)
    monkeypatch.setattr(tuning, "processors_of_a_rank", lambda: 2)
    yield
    follow(None)
    for one in list(_State.loaders):
        del _State.loaders[one]
    _State.finished.clear()


def states() -> list[Any]:
    numbers = numpy.random.get_state()
    return [
        torch.get_rng_state().tolist(),
        [part.tolist() if isinstance(part, numpy.ndarray) else part for part in numbers],
        random.getstate(),
    ]


def seeded(make: Make, tuned: bool, epochs: int) -> tuple[list[Any], list[Any], Tuning | None]:
    """The batches of some epochs and the state of the random generators behind them."""
    torch.manual_seed(7)
    numpy.random.seed(7)
    random.seed(7)
    loader = make()
    found = arm(loader, Bounds()) if tuned else None
    batches = []
    for _ in range(epochs):
        for batch in loader:
            batches.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
            # A training step draws random numbers too, as dropout does.
            batches.append(torch.rand(()).item())
    return batches, states(), found


LOADERS: dict[str, Make] = {
    "in order": lambda: DataLoader(Numbers(), 4),
    "shuffled": lambda: DataLoader(Numbers(), 4, shuffle=True),
    "own generator": lambda: DataLoader(
        Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "weighted": lambda: DataLoader(
        Numbers(), 4, sampler=WeightedRandomSampler([1.0] * 300, 300, replacement=True)
    ),
    "subset": lambda: DataLoader(Numbers(), 4, sampler=SubsetRandomSampler(range(0, 300, 2))),
    "uneven batches": lambda: DataLoader(Numbers(), batch_sampler=UnevenBatches(300)),
    "no batches": lambda: DataLoader(Numbers(150), batch_size=None, shuffle=True),
    "last batch dropped": lambda: DataLoader(Numbers(299), 4, drop_last=True, shuffle=True),
    "collated": lambda: DataLoader(Numbers(), 4, collate_fn=add_one, worker_init_fn=wait_a_little),
    "own workers": lambda: DataLoader(Numbers(), 4, shuffle=True, num_workers=1),
    "persistent": lambda: DataLoader(
        Numbers(), 4, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "short epochs": lambda: DataLoader(Numbers(10), 4, shuffle=True),
    "one batch": lambda: DataLoader(Numbers(3), 4, shuffle=True),
    "nothing": lambda: DataLoader(Numbers(2), 4, drop_last=True),
}


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", LOADERS)
def test_order_and_random_state_are_as_without_tuning(name: str) -> None:
    expected, state, _ = seeded(LOADERS[name], False, 3)
    batches, after, found = seeded(LOADERS[name], True, 3)
    assert batches == expected
    assert after == state
    assert found is not None
    tried = {trial.setting.workers for trial in found.trials}
    assert len(tried) > 1 or name in ("one batch", "nothing", "short epochs")


@pytest.mark.long
def test_spawned_workers() -> None:
    def make() -> DataLoader[Any]:
        loader = DataLoader(
            Numbers(120), 4, shuffle=True, num_workers=1, multiprocessing_context="spawn"
        )
        return loader

    expected, state, _ = seeded(make, False, 1)
    batches, after, found = seeded(make, True, 1)
    assert (batches, after) == (expected, state)
    assert found is not None
    assert len(found.trials) > 1
    assert all(trial.seconds is not None for trial in found.trials)


def test_a_loader_that_is_no_bottleneck_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Even what workers draw at random is the same: their seeds are the loader's own.
    monkeypatch.setattr(tuning, "NO_BOTTLENECK", 2.0)

    def make() -> DataLoader[Any]:
        return DataLoader(Augmented(), 4, shuffle=True, num_workers=2)

    def plain(batches: list[Any]) -> list[Any]:
        return [[p.tolist() for p in b] if isinstance(b, list) else b for b in batches]

    expected, state, _ = seeded(make, False, 2)
    batches, after, found = seeded(make, True, 2)
    assert (plain(batches), after) == (plain(expected), state)
    assert found is not None
    assert found.chosen == found.own
    assert len(found.trials) == 1


def test_the_choice_stands_in_the_loader_and_holds_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = {0: 1.0, 1: 0.3, 2: 0.6}
    monkeypatch.setattr(
        trial_times.TrialTimes, "seconds_a_sample", lambda times: costs[times.workers]
    )
    monkeypatch.setattr(trial_times.TrialTimes, "start", lambda times: 0.0)
    loader = DataLoader(Numbers(), 4)
    found = arm(loader, Bounds())
    expected = list(range(300))
    for _ in range(3):
        assert [int(x) for batch in loader for x in batch] == expected
    assert found.chosen is not None
    assert found.chosen.workers == loader.num_workers == 1
    (line, *_) = found.report().lines()
    assert "Numbers: no workers, 1 thread -> 1 worker x" in line
    assert "1 -> 3 samples/s" in line
    loader.num_workers, loader.prefetch_factor = 0, None  # the program's word is the last
    assert type(iter(loader)).__name__ == "_SingleProcessDataLoaderIter"


def test_threads_are_the_programs_again_behind_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    met = set()
    loader = DataLoader(Numbers(), 4)
    found = arm(loader, Bounds())
    for _ in loader:
        met.add(torch.get_num_threads())
    assert {trial.setting.threads for trial in found.trials} == met == {1, 2}
    assert torch.get_num_threads() == 2
    found.chosen = Setting(1, 2, 1)
    found.apply(loader)
    for position, _ in enumerate(loader):
        assert torch.get_num_threads() == 1
        if position == 3:
            break
    del _
    assert torch.get_num_threads() == 2


def test_an_error_of_the_dataset_is_the_same_as_without_tuning() -> None:
    for tuned in (False, True):
        loader = DataLoader(Raises(), 4)
        found = arm(loader, Bounds()) if tuned else None
        seen, errors = [], []
        batches = iter(loader)
        while True:
            try:
                seen.append(next(batches).tolist())
            except StopIteration:
                break
            except KeyError as error:
                errors.append(str(error))
        assert errors == ["'no item 123'"]
        assert [x for batch in seen for x in batch] == [x for x in range(300) if not 120 <= x < 124]
        assert found is None or len(found.trials) > 1


# The destructor of PyTorch's iterator may meet the worker that was killed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (RaisesInWorkers(), "OSError: the file handle does not survive a fork (in a worker)"),
        (DiesInWorkers(), "RuntimeError: DataLoader worker"),
    ],
    ids=["raises", "dies"],
)
def test_an_error_in_workers_only_does_not_reach_the_loop(dataset: Any, told: str) -> None:
    loader = DataLoader(dataset, 4)
    found = arm(loader, Bounds())
    for _ in range(2):
        assert [int(x) for batch in loader for x in batch] == list(range(300))
    assert found.chosen == found.own
    assert loader.num_workers == 0
    failed = [trial.reason for trial in found.trials if trial.seconds is None]
    assert len(failed) == tuning.MOST_FAILURES
    assert told in failed[0]
    assert any(told in line for line in found.report().lines())


# The destructor of PyTorch's iterator may meet the worker that was killed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_chosen_setting_that_fails_later_is_given_up() -> None:
    loader = DataLoader(DiesInWorkers(), 4)
    found = arm(loader, Bounds())
    found.chosen = Setting(1, 2, 1)
    found.apply(loader)
    found.epochs = 1
    assert [int(x) for batch in loader for x in batch] == list(range(300))
    assert found.chosen == found.own
    assert loader.num_workers == 0


def test_a_dataset_that_cannot_be_pickled_stays_in_the_process() -> None:
    dataset = Numbers(60)
    dataset.function = lambda: None  # type: ignore[attr-defined]  # what pickle refuses
    loader = DataLoader(dataset, 4)
    loader.multiprocessing_context = None
    import multiprocessing  # noqa: PLC0415

    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        found = arm(loader, Bounds())
        assert [int(x) for batch in loader for x in batch] == list(range(60))
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert found.chosen == found.own
    assert any("pickle" in trial.reason for trial in found.trials)


def test_a_loop_that_is_left_early_goes_on_in_the_next_epoch() -> None:
    loader = DataLoader(Numbers(), 4)
    found = arm(loader, Bounds())
    for _ in range(40):
        if found.chosen is not None:
            break
        for position, _batch in enumerate(loader):
            if position == 11:
                break
    assert found.chosen is not None


def test_too_little_shared_memory_is_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_shared_memory", lambda: 100)
    loader = DataLoader(Numbers(), 4)
    found = arm(loader, Bounds())
    assert [int(x) for batch in loader for x in batch] == list(range(300))
    assert found.chosen == found.own
    assert {trial.setting.workers for trial in found.trials if trial.seconds} == {0}
    assert "too little shared memory" in found.trials[1].reason


def test_more_workers_than_processors_are_the_programs_affair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch tells of it by itself
        loader = DataLoader(Numbers(), 4, num_workers=5)
        found = arm(loader, Bounds())
        assert [int(x) for batch in loader for x in batch] == list(range(300))
    assert found.trials[0].setting.workers == 5
    assert {trial.setting.workers for trial in found.trials[1:]} <= {0, 1, 2, 5}


def test_two_loaders_at_once_are_tuned_one_after_the_other() -> None:
    first, second = DataLoader(Numbers(), 4), DataLoader(Numbers(), 4)
    one, two = arm(first, Bounds()), arm(second, Bounds())
    for left, right in zip(first, second, strict=True):
        assert left.tolist() == right.tolist()
    assert one.trials
    assert not two.trials
    assert type(iter(second)) is epoch.Epoch or one.chosen is None


def test_an_iterable_dataset_is_tried_epoch_by_epoch() -> None:
    loader = DataLoader(Stream(), 4)
    found = arm(loader, Bounds())
    for _ in range(12):
        assert [int(x) for batch in loader for x in batch] == list(range(60))
    assert found.chosen is not None
    assert {trial.setting.workers for trial in found.trials} == {0, 1}


def test_an_iterable_dataset_with_workers_keeps_their_number() -> None:
    loader = DataLoader(Stream(), 4, num_workers=2)
    expected = [batch.tolist() for batch in loader]
    found = arm(loader, Bounds())
    assert [batch.tolist() for batch in loader] == expected
    assert found.chosen == found.own
    assert "order" in found.reason


def test_bounds_of_batches_and_seconds_end_a_search() -> None:
    for bounds in (Bounds(steps=12), Bounds(seconds=1e-9)):
        loader = DataLoader(Numbers(), 4)
        found = arm(loader, bounds)
        assert [int(x) for batch in loader for x in batch] == list(range(300))
        assert found.chosen == found.own
        assert found.batches <= 20


def test_a_batch_is_profiled_though_each_trial_takes_a_whole_epoch() -> None:
    loader = DataLoader(Numbers(12), 4)  # three batches
    found = arm(loader, Bounds())
    expected = [batch.tolist() for batch in DataLoader(Numbers(12), 4)]
    for _ in range(3):
        assert [batch.tolist() for batch in loader] == expected
    assert found.profiled
    assert found.breakdown is not None
    assert sum(found.breakdown.shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("batches", [75, 3])
def test_the_own_setting_is_judged_once_kernels_are_chosen(
    batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    monkeypatch.setattr(epoch, "search_count", lambda: min(steps, 30))
    loader = DataLoader(Numbers(4 * batches), 4)
    found = arm(loader, Bounds(steps=1000))
    counts = []
    while not found.trials:
        for _ in loader:
            steps += 1
            counts.append(len(found.trials))
    assert counts[:30] == [0] * 30
    assert found.trials[0].setting == found.own
    assert found.choosing[found.own] == 30
    assert counts.index(1) < 40 if batches == 75 else len(counts) == 33
    assert found.batches == len(counts) - 30 or batches == 75


def test_kernels_that_are_chosen_for_ever_do_not_stop_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = 0
    monkeypatch.setattr(epoch, "search_count", lambda: steps)
    monkeypatch.setattr(tuning, "MOST_CHOOSING", 20)
    loader = DataLoader(Numbers(), 4)
    found = arm(loader, Bounds())
    for _ in loader:
        steps += 1
    assert found.choosing[found.own] == 20
    assert len(found.trials) > 1
