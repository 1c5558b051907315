"""Trials wait while tuning has cost more than its share of the time."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fake_device import FakeDevice
from fake_program import DearComparison, Program

from bestof import BestOf
from bestof.errors import BestofWarning, InvalidArgument
from bestof.selection import Alternative
from bestof.selection.policies import Race, Rounds
from bestof.selection.state import registry
from bestof.selection.state.budget import SHARE, Budget, lifted
from bestof.selection.state.candidate import Candidate
from bestof.selection.state.registry import Defaults, account_of, search_count
from bestof.selection.state.tuning import Tuning, new_tuning

TIMES = {"first": 0.05, "slow": 0.2, "fast": 0.03, "other": 0.06}


@pytest.fixture(autouse=True)
def budgets_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BESTOF_BUDGET")


def test_tuning_never_costs_more_than_its_share(program: Program) -> None:
    selector = program.selector(TIMES, lambda n: n, policy=Race())
    account = selector._knowledge.budget
    lost = 0.0
    for turn in range(4000):
        before = selector.trials
        selector(turn % 4)
        took = TIMES[program.calls[-1]]
        if selector.trials > before and turn > 3:
            lost += max(0.0, took - TIMES["first"])
        assert lost <= max(0.2, 1.05 * SHARE * program.clock.now + 0.2)
        assert account.lost <= max(0.2, SHARE * program.clock.now + 0.2)
    assert [selector.explain(n).decision for n in range(4)] == ["fast"] * 4


def test_calls_that_wait_take_the_best_known(program: Program) -> None:
    selector = program.selector({"first": 1.0, "slow": 3.0, "fast": 0.5})
    assert [selector(1) for _ in range(4)] == ["first"] * 4
    assert selector.trials == 1
    while selector.trials == 1:
        selector(1)
    assert program.clock.now > 1.0 / SHARE
    assert program.taken()[-1] == "slow"
    assert selector(1) == "first"


def test_without_a_bound_trials_come_at_once(program: Program) -> None:
    selector = program.selector({"first": 1.0, "slow": 3.0, "fast": 0.5}, budget=None)
    assert [selector(1) for _ in range(3)] == ["first", "slow", "fast"]


def test_tuning_that_was_ordered_needs_no_budget(program: Program) -> None:
    selector = program.selector({"first": 1.0, "slow": 3.0, "fast": 0.5})
    with lifted():
        assert [selector(1) for _ in range(3)] == ["first", "slow", "fast"]
    assert selector._knowledge.budget.lost == 0
    assert [selector(2) for _ in range(4)] == ["first"] * 4


def test_cheap_comparisons_of_ordered_tuning_need_no_budget(program: Program) -> None:
    costs = program.selector(TIMES)._knowledge.costs
    costs.budget.book(100.0)
    assert not costs.may_compare()
    with lifted():
        assert costs.may_compare()


def test_a_pass_of_a_group_is_never_cut(program: Program) -> None:
    pairs: Any = [
        (name, [program.function(f"{name}0", seconds), program.function(f"{name}1", seconds)])
        for name, seconds in (("a", 0.04), ("b", 0.3))
    ]
    selector = program.selector(pairs)
    for _ in range(400):
        began = selector(0, 1)
        assert selector(1, 1)[0] == began[0]
    assert {name[0] for name in program.taken()} == {"a", "b"}
    assert selector._knowledge.budget.lost <= SHARE * program.clock.now + 1.0


def test_comparisons_are_paid_for(program: Program) -> None:
    selector = program.selector({"first": 0.02, "same": 0.02}, check=lambda *_: True)
    for _ in range(2):
        selector(1)
    assert selector._knowledge.budget.lost == pytest.approx(0.02)


def test_what_the_program_waits_for_a_device_is_paid_for(program: Program) -> None:
    device = FakeDevice()
    names = ("first", "b", "c", "d")
    selector = program.selector(
        [(name, device.function(name, 1e-5)) for name in names],
        lambda n: n,
        policy=Race(),
        timer=device,
        check=DearComparison(program, 1.0),
    )
    for turn in range(8000):
        selector(turn % 4)
        device.finishes()
        program.clock.passes(0.05)
        # Two seconds: a comparison that was begun, and one whose price was not known.
        assert selector._knowledge.budget.lost <= SHARE * program.clock.now + 2.0
    assert [selector.explain(n).decision for n in range(4)] == ["first"] * 4


class Behind(DearComparison):
    """The device is a second behind the program."""

    def wait(self, stage: int, args: tuple[Any, ...]) -> None:
        self._program.clock.passes(1.0)


def test_what_the_program_had_begun_before_is_no_price_of_a_comparison(program: Program) -> None:
    device = FakeDevice()
    selector = program.selector(
        [(name, device.function(name, 1e-5)) for name in ("first", "b")],
        lambda n: n,
        timer=device,
        check=Behind(program, 0.1),
    )
    while selector.trials < 2:
        selector(1)
        device.finishes()
        program.clock.passes(0.05)
    assert selector._knowledge.budget.lost == pytest.approx(0.1, rel=1e-3)


def test_selectors_of_the_process_share_one_account() -> None:
    assert account_of(time.perf_counter) is Defaults.budget
    assert account_of(time.process_time) is not Defaults.budget


def test_calls_that_wait_are_no_sign_that_all_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    account = Budget(lambda: now)
    account.book(9.0)
    monkeypatch.setattr(Defaults, "budget", account)
    slow, fast = (lambda n, _s=s: time.sleep(_s) or n for s in (2e-3, 1e-3))
    selector = BestOf("it", [("slow", slow), ("fast", fast)], lambda n: n, policy=Race())
    selector(1)  # the program needs the first trial of a problem
    before, trials = search_count(), selector.trials
    for _ in range(3):
        selector(1)
        assert selector.trials == trials
        assert search_count() > before
        before = search_count()
    now = 1e9
    for _ in range(40):
        selector(1)
    assert selector.explain(1).decision is not None
    before = search_count()
    for _ in range(3):
        selector(1)
    assert search_count() == before


def test_a_budget_from_outside_that_is_not_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESTOF_BUDGET", "0.1")
    with pytest.warns(BestofWarning, match="BESTOF_BUDGET: expected 'off'; got '0.1'"):
        assert Budget().is_on


def test_an_account_is_free_at_first_and_cheap_trials_never_wait() -> None:
    now = 0.0
    account = Budget(lambda: now)
    account.book(0.04)
    assert account.allows(SHARE, 0.05)
    assert not account.allows(SHARE, 0.07)
    assert account.allows(None, 0.07)
    now = 3.0
    assert account.allows(SHARE, 0.1)
    account.book(5.0)
    assert not account.allows(SHARE, 0.001)
    assert account.allows(SHARE, 1e-5)


@pytest.mark.parametrize("share", [0, -0.1, 1.5, "much", True, float("nan")])
def test_other_budgets_are_refused(share: Any) -> None:
    with pytest.raises(InvalidArgument, match="budget: expected a share of the time above 0"):
        BestOf("it", [("a", len)], len, budget=share)
    selector = BestOf("it", [("a", len)], len)
    with pytest.raises(InvalidArgument, match="budget"):
        selector.budget = share
    assert selector.budget == SHARE


def test_the_cheapest_by_estimate_is_tried_after_the_first(program: Program) -> None:
    estimates = {"first": 4.0, "c": 9.0, "b": 1.0, "unknown": None, "a": 2.0}
    alternatives = [
        Alternative(
            name,
            program.function(name, 1.0),
            estimate=None if cost is None else lambda _, cost=cost: cost,
        )
        for name, cost in estimates.items()
    ]
    selector = program.selector(alternatives, budget=None)
    assert [selector(1) for _ in range(5)] == ["first", "b", "a", "c", "unknown"]


def test_an_estimate_that_raises_disqualifies(program: Program) -> None:
    def broken(problem: Any) -> float:
        raise ValueError(problem)

    alternatives = [("first", program.function("first", 1.0))]
    selector = program.selector(
        [*alternatives, Alternative("b", program.function("b", 1.0), estimate=broken)]
    )
    with pytest.warns(BestofWarning, match="'b' was disqualified: estimate raised ValueError"):
        assert [selector(1) for _ in range(5)] == ["first"] * 5


@pytest.mark.parametrize(
    ("estimates", "samples", "cost"),
    [
        ((None, None), [], 2.0),
        ((4.0, None), [], 2.0),
        ((4.0, 1.0), [], 0.2),
        ((4.0, 6.0), [], 1.0),
        ((4.0, 8.0), [2.5, 2.1], 0.1),
        ((None, None), [1.0], 0.0),
    ],
)
def test_what_a_trial_is_likely_to_cost(
    estimates: tuple[float | None, ...], samples: list[float], cost: float
) -> None:
    alternatives = [
        Alternative(name, len, estimate=None if one is None else lambda _, one=one: one)
        for name, one in zip("ab", estimates, strict=True)
    ]
    stages: list[dict[int, Any]] = [{0: len}, {0: len}]
    refused = [Candidate.refused(one, (len,)) for one in alternatives]
    tuning = new_tuning(1, alternatives, stages, Race(), refused)
    tuning.tell(0, 2.0)
    tuning.least = 2.0
    for seconds in samples:
        tuning.tell(1, seconds)
    assert tuning.likely_cost(1) == pytest.approx(cost)


def test_trials_that_cost_little_come_early(program: Program) -> None:
    selector = program.selector({"first": 1.0, "near": 1.01}, policy=Rounds(rounds=9))
    while selector.trials < 2:
        selector(1)
    account = selector._knowledge.budget
    account.lost = SHARE * account.seconds - 0.2  # less than the time of a call is left
    selector(1), selector(1)
    assert selector.trials == 4


def test_a_used_up_account_stops_trials_that_are_likely_to_cost_nothing(program: Program) -> None:
    selector = program.selector({"first": 1.0, "same": 1.0}, policy=Rounds(rounds=9))
    selector(1)
    selector._knowledge.budget.book(5.0)
    trials = selector.trials
    assert [selector(1) for _ in range(20)] == ["first"] * 20
    assert selector.trials == trials


def test_the_price_of_comparisons_is_learnt(program: Program) -> None:
    selector = program.selector({"first": 1.0, "same": 1.0}, check=DearComparison(program, 0.0))
    selector(1)
    program.clock.passes(100.0)
    account = selector._knowledge.budget
    account.lost = SHARE * account.seconds - 1.5  # enough for a trial
    selector(1)
    assert selector.trials == 1  # a comparison is taken to cost as much as three calls
    for _ in range(9):
        selector._knowledge.costs.compared(0.01, 1.0, trusted=True)
    account.lost = SHARE * account.seconds - 1.5
    selector(1)
    assert selector.trials == 1  # those of a trusted alternative tell nothing of others
    for _ in range(9):
        selector._knowledge.costs.compared(0.01, 1.0, trusted=False)
    account.lost = SHARE * account.seconds - 1.5
    selector(1)
    assert selector.trials == 2


def test_one_comparison_in_which_a_library_sets_itself_up_does_not_end_the_search(
    program: Program,
) -> None:
    selector = program.selector({"first": 1.0, "same": 1.0}, check=DearComparison(program, 0.0))
    selector(1)
    selector._knowledge.costs.compared(1000.0, 1.0, trusted=False)
    account = selector._knowledge.budget
    program.clock.passes(100.0)
    account.lost = SHARE * account.seconds - 10.0  # enough for a trial and eight calls
    selector(1)
    assert selector.trials == 2


def test_a_far_faster_alternative_does_not_make_later_comparisons_dear(program: Program) -> None:
    """A comparison takes as long as PyTorch's own kernel, whatever is compared with it."""
    selector = program.selector({"first": 1.0, "fast": 0.01}, check=DearComparison(program, 1.0))
    for problem in (1, 2):
        selector(problem)
        program.clock.passes(100.0)
        selector._knowledge.budget.lost = SHARE * selector._knowledge.budget.seconds - 4.5
        trials = selector.trials
        selector(problem)
        assert selector.trials == trials + 1
    assert program.taken() == ["first", "fast"] * 2


def test_a_search_is_asked_with_the_lock_only(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may take what the search has asked for, while a call looks at its price."""
    selector = program.selector(TIMES, lambda n: n, policy=Race(), budget=0.9)
    selector(1)
    (tuning,) = selector._knowledge.tunings.values()
    assert tuning.asked is not None
    ask = Tuning.ask

    def with_lock(tuning: Tuning) -> int | None:
        assert selector._knowledge.lock._is_owned()
        return ask(tuning)

    def meanwhile() -> bool:
        tuning.asked = None
        return False

    monkeypatch.setattr(Tuning, "ask", with_lock)
    monkeypatch.setattr(registry, "ranks_agree", meanwhile)
    assert selector(1) in TIMES
