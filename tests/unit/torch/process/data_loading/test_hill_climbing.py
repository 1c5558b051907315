"""The search over settings, with costs from models of a loader: no clock, no processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestof.torch.process.data_loading.hill_climbing import GAIN, HillClimbing
from bestof.torch.process.data_loading.setting import Setting

Cost = Callable[[Setting], float]


def found(climb: HillClimbing, cost: Cost) -> Setting:
    for _ in range(200):
        setting = climb.ask()
        if setting is None:
            return climb.best
        climb.tell(cost(setting))
    raise AssertionError("the search does not end")


def model(fetch: float, compute: float, processors: int, handing_over: float = 0.0) -> Cost:
    """Seconds of a batch: workers and computing threads share the processors, and overlap."""

    def cost(setting: Setting) -> float:
        if setting.workers == 0:
            return fetch + compute / setting.threads
        busy = setting.workers + setting.threads
        slow = max(1.0, busy / processors)
        return max(slow * fetch / setting.workers, slow * compute / setting.threads) + handing_over

    return cost


def all_settings(processors: int, threads: int) -> list[Setting]:
    counts = range(1, threads + 1)
    return [Setting(w, 2 if w else None, t) for w in range(processors + 1) for t in counts]


@pytest.mark.parametrize("processors", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("ratio", [0.01, 0.2, 1.0, 3.0, 20.0])
def test_the_best_of_a_model_is_found_within_a_tenth(processors: int, ratio: float) -> None:
    # The hills of this model have one top, but only two numbers of threads are tried beside each
    # number of workers, and numbers of workers are halved and doubled.
    cost = model(ratio, 1.0, processors)
    own = Setting(0, None, processors)
    climb = HillClimbing(own, processors, processors)
    best = found(climb, cost)
    assert cost(best) <= 1.1 * min(map(cost, all_settings(processors, processors)))
    # Two numbers of threads for each doubling, for two middles of each halving, and the prefetch
    # factors.
    doublings = processors.bit_length()
    assert len(climb.costs) <= 2 * (1 + doublings) + 4 * doublings + 3


def test_no_workers_win_where_handing_over_costs_more_than_it_hides() -> None:
    own = Setting(4, 2, 4)
    assert found(HillClimbing(own, 4, 4), model(0.01, 1.0, 4, handing_over=1.0)).workers == 0


@given(st.data())
def test_the_result_is_never_worse_than_the_own_setting(data: st.DataObject) -> None:
    processors = data.draw(st.integers(1, 32))
    workers = data.draw(st.integers(0, 40))
    own = Setting(workers, 2 if workers else None, data.draw(st.integers(1, 32)))
    costs: dict[Setting, float] = {}

    def cost(setting: Setting) -> float:
        if setting not in costs:
            costs[setting] = data.draw(st.floats(0.1, 10.0) | st.just(float("inf")))
        return costs[setting]

    climb = HillClimbing(own, processors, processors)
    best = found(climb, cost)
    assert best == own or costs[best] < GAIN * costs[own]
    assert all(s.workers <= max(processors, own.workers) and s.threads >= 1 for s in costs)


def test_noise_below_the_threshold_moves_nothing() -> None:
    own = Setting(2, 2, 2)
    noise = iter([1.0, *[0.99, 1.01, 0.98] * 50])
    assert found(HillClimbing(own, 4, 4), lambda _: next(noise)) == own


def test_a_close_winner_is_measured_again() -> None:
    # The first trial of the own setting is slow, as a program's first steps are.
    own = Setting(0, None, 1)
    told: list[Setting] = []

    def cost(setting: Setting) -> float:
        told.append(setting)
        return 1.5 if len(told) == 1 else 1.0

    assert found(HillClimbing(own, 2, 2), cost) == own
    assert told.count(own) == 2


def test_a_search_that_is_stopped_takes_the_best_so_far() -> None:
    own, one = Setting(0, None, 2), Setting(1, 2, 2)
    climb = HillClimbing(own, 4, 4)
    climb.tell(1.0)
    assert climb.ask() == one
    climb.tell(0.5)
    climb.stop()
    assert climb.ask() is None
    assert climb.best == one


def test_a_search_is_replayed_from_its_times() -> None:
    def told(times: list[float]) -> list[Setting]:
        climb, asked = HillClimbing(Setting(0, None, 4), 8, 8), []
        for time in times:
            setting = climb.ask()
            if setting is None:
                break
            asked.append(setting)
            climb.tell(time)
        return [*asked, climb.best]

    times = [1.0, 0.7, 0.8, 0.4, 0.5, 0.45, 0.6, 0.7, 0.39, 0.41, 0.5, 0.6] * 3
    assert told(times) == told(times)


def test_bounds_hold() -> None:
    asked = []
    climb = HillClimbing(Setting(0, None, 8), 8, 4, least=2)
    while (setting := climb.ask()) is not None:
        asked.append(setting)
        climb.tell(1.0 / (1 + setting.workers))
    assert {one.workers for one in asked} <= {0, 2, 3, 4}
    assert climb.best.workers == 4


@pytest.mark.parametrize("own", [8, 63, 64])
def test_only_the_own_setting_may_have_more_workers_than_are_allowed(own: int) -> None:
    asked = []
    climb = HillClimbing(Setting(own, 2, 2), 2, 2)
    while (setting := climb.ask()) is not None:
        asked.append(setting)
        climb.tell(1.0 / (1 + setting.workers))  # the more, the faster
    assert {one.workers for one in asked} <= {own, 2, 1, 0}
    assert climb.best.workers == own
