"""The times of a trial, from recorded loops."""

from __future__ import annotations

import pytest

from bestof.torch.process.data_loading.trial_times import TrialTimes


def loop(times: TrialTimes, waits: list[float], compute: float, samples: int = 4) -> None:
    now = 0.0
    for wait in waits:
        times.ask(now)
        now += wait
        times.get(now, samples)
        now += compute
    times.ask(now)


def test_the_median_of_groups_is_the_time_of_a_sample() -> None:
    times = TrialTimes(2, 100)
    # Two workers: batches come in pairs. The first pair waits for the workers to start, one is
    # disturbed.
    loop(times, [5.0, 0.0, 0.6, 0.0, 0.6, 0.0, 9.0, 0.0, 0.6, 0.0], 0.1)
    assert times.seconds_a_sample() == pytest.approx((0.6 + 2 * 0.1) / 8)
    assert times.start() == pytest.approx(5.0 - 0.6)
    assert times.complete


def test_waiting_is_a_part_of_the_steady_time() -> None:
    times = TrialTimes(0, 100)
    loop(times, [7.0, 0.3, 0.3, 0.3, 0.3, 0.3], 0.1)
    assert times.waiting() == pytest.approx(0.75)
    assert times.complete


def test_a_trial_without_waiting_waits_nothing() -> None:
    times = TrialTimes(0, 100)
    loop(times, [0.0] * 8, 1.0)
    assert times.waiting() == 0.0


def test_batches_of_unequal_size_are_judged_by_samples() -> None:
    times, now = TrialTimes(0, 100), 0.0
    for samples in (1, 8, 2, 6, 4):
        times.ask(now)
        now += 0.25 * samples
        times.get(now, samples)
    times.ask(now)
    assert times.seconds_a_sample() == pytest.approx(0.25)


def test_a_short_trial_is_not_complete() -> None:
    times = TrialTimes(0, 100)
    loop(times, [0.001] * 9, 0.001)
    assert not times.complete
    assert TrialTimes(4, 100).seconds_a_sample() is None
    assert TrialTimes(4, 100).seconds_of_all() is None
    loop(times, [0.001] * 100, 0.001)
    assert times.complete  # its batches are used up


def test_a_short_epoch_is_judged_as_a_whole() -> None:
    times = TrialTimes(4, 100)
    loop(times, [2.0, 0.0, 0.0], 1.0)
    assert times.seconds_a_sample() is None
    assert times.seconds_of_all() == pytest.approx(5.0 / 12)


def test_the_start_is_what_the_first_group_waits_beyond_a_usual_one() -> None:
    times = TrialTimes(3, 100)
    loop(times, [5.0, 0.0, 0.0, 0.6, 0.0, 0.0, 0.6, 0.0, 0.0, 0.6, 0.0, 0.0], 0.1)
    assert times.start() == pytest.approx(5.0 - 0.6)


def test_batches_before_the_last_trial_of_a_kernel_do_not_count() -> None:
    times, now = TrialTimes(2, 100, most_skipped=20, kernel_trials=7), 0.0
    for batch in range(12):
        times.ask(now, 7 + min(batch, 5))  # the steps of five batches have trials, and take long
        now += 0.25
        times.get(now, 4)
        now += 10.0 if batch < 5 else 0.75
    times.ask(now, 12)
    assert times.skipped == 5
    assert times.seconds_a_sample() == pytest.approx(0.25)
    assert times.waiting() == pytest.approx(0.25)
    assert times.complete


def test_a_trial_waits_for_kernels_no_longer_than_it_may() -> None:
    times = TrialTimes(0, 10, most_skipped=3)
    for batch in range(15):
        times.ask(float(batch), batch)
        times.get(batch + 0.5, 1)
        assert times.skipped == min(batch, 3)
    assert times.complete
