"""A verifier: no alternative that it does not trust answers a problem uncompared."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from fake_program import Clock

from bestof import Alternative, BestOf
from bestof.errors import BestofWarning
from bestof.selection import Fixed, Verdict, Verifier
from bestof.selection.policies import Rounds
from bestof.selection.state.registry import Defaults
from bestof.selection.store.memory import MemoryStore

RIGHT, WRONG = "right", "wrong"


class Names(Verifier):
    """Expects the text "right". `judged` are the alternatives that were compared, in order."""

    def __init__(self, *, tells: bool = True, reference: str | None = None) -> None:
        self.judged: list[tuple[str, int]] = []
        self.tells = tells
        self.reference = reference
        self.error: BaseException | None = None
        self.wrong: set[str] = set()  # of these, the verifier finds every result wrong

    def trusts(self, alternative: str) -> bool:
        return alternative == "as is"

    def expect(self, stage: int, args: tuple[Any, ...]) -> str:
        return RIGHT

    def judge(
        self, alternative: str, stage: int, args: tuple[Any, ...], expected: Any, got: Any
    ) -> Verdict:
        self.judged.append((alternative, stage))
        if self.error is not None:
            raise self.error
        if alternative in self.wrong:
            return Verdict(expected, "it turned wrong")
        if got != expected:
            return Verdict(expected, f"{got!r}")
        return Verdict(got, None, self.reference, self.tells)

    def put_back(self, expected: Any) -> None:
        pass


def make(
    answers: dict[str, tuple[float, str]],
    verifier: Names,
    stages: int = 0,
    clock: Clock | None = None,
    unpromising: Collection[str] = (),
    **options: Any,
) -> BestOf:
    clock = clock or Clock()

    def function(seconds: float, answer: str) -> Any:
        def call(*_: Any) -> str:
            clock.passes(seconds)
            return answer

        return call

    rows = [
        Alternative(
            name,
            [function(*given)] * stages if stages else function(*given),
            unpromising=lambda _, name=name: name in unpromising and "known as slow",  # type: ignore[misc]
        )
        for name, given in answers.items()
    ]
    options = {"policy": Rounds(rounds=2), "store": "off", "clock": clock, **options}
    return BestOf("verified", rows, lambda problem: problem, check=verifier, **options)


FAST_AND_WRONG = {"as is": (4.0, RIGHT), "broken": (1.0, WRONG), "native": (2.0, RIGHT)}
FAST = {"as is": (4.0, RIGHT), "native": (1.0, RIGHT)}


def test_a_wrong_one_never_answers_and_each_right_one_is_compared_once() -> None:
    verifier = Names()
    selector = make(FAST_AND_WRONG, verifier)
    with pytest.warns(BestofWarning, match="'broken' was disqualified: wrong result: 'wrong'"):
        assert [selector(1) for _ in range(20)] == [RIGHT] * 20
    assert verifier.judged == [("broken", 0), ("native", 0)]
    assert selector.explain(1).decision == "native"


def test_a_wrong_one_gives_way_to_one_that_was_left_out() -> None:
    """PyTorch's own kernel, for example, where it is not worth a trial."""
    verifier, answers = Names(), {"as is": (4.0, RIGHT), "broken": (1.0, WRONG)}
    selector = make(answers, verifier, unpromising=["as is"])
    with pytest.warns(BestofWarning, match="'broken' was disqualified: wrong result: 'wrong'"):
        assert [selector(1) for _ in range(9)] == [RIGHT] * 9
    assert verifier.judged == [("broken", 0)]
    assert selector.explain(1).decision == "as is"


@pytest.mark.parametrize("policy", [Fixed("broken"), Rounds(rounds=2)])
def test_an_order_and_the_policy_are_compared_before_they_answer(policy: Any) -> None:
    selector = make({"as is": (4.0, RIGHT), "broken": (1.0, WRONG)}, Names(), policy=policy)
    with pytest.warns(BestofWarning, match="'broken' was disqualified"):
        assert [selector(1) for _ in range(9)] == [RIGHT] * 9


def test_a_forced_choice_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESTOF_FORCE", "verified=broken")
    selector = make(FAST_AND_WRONG, Names())
    with pytest.warns(BestofWarning, match="'broken' was disqualified"):
        assert [selector(1) for _ in range(9)] == [RIGHT] * 9


def test_a_stored_decision_is_compared_on_its_first_call() -> None:
    store = MemoryStore()
    first = make(FAST, Names(), store=store)
    assert [first(1) for _ in range(9)] == [RIGHT] * 9
    again = Names()
    second = make(FAST, again, store=store)
    second(1), second(1)
    assert again.judged == [("native", 0)]
    turned = {"as is": (4.0, RIGHT), "native": (1.0, WRONG)}
    broken = make(turned, Names(), store=store)
    with pytest.warns(BestofWarning, match="'native' was disqualified"):
        assert [broken(1) for _ in range(9)] == [RIGHT] * 9
    later = Names()
    assert make(turned, later, store=store)(1) == RIGHT
    assert later.judged == []  # the store keeps it as wrong


def test_a_comparison_that_tells_nothing_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Defaults.live_checks, "is_on", False)  # their clock is the machine's
    verifier = Names(tells=False)
    selector = make(FAST, verifier)
    assert [selector(1) for _ in range(200)] == [RIGHT] * 200
    assert selector.explain(1).decision == "native"
    before = len(verifier.judged)
    assert before > 100
    verifier.tells = True
    assert [selector(1) for _ in range(50)] == [RIGHT] * 50
    assert len(verifier.judged) == before + 1


def test_each_stage_of_a_group_is_compared_whenever_it_comes() -> None:
    verifier = Names()
    selector = make(FAST, verifier, stages=2, policy=Fixed("native"))
    for _ in range(100):  # forward passes alone
        assert selector(0, 1) == RIGHT
    assert verifier.judged == [("native", 0)]
    for _ in range(3):
        selector(0, 1)
        assert selector(1, 1) == RIGHT
    assert verifier.judged == [("native", 0), ("native", 1)]


@pytest.mark.parametrize(("winner", "is_open"), [("as is", False), ("native", True)])
def test_stages_that_are_never_called_hold_up_only_what_must_be_compared(
    winner: str, is_open: bool
) -> None:
    """A trained model that only infers calls no second stage of its stored decisions."""
    answers, store = {"as is": (4.0, RIGHT), "native": (4.0, RIGHT)}, MemoryStore()
    answers[winner] = (1.0, RIGHT)
    first = make(answers, Names(), stages=2, store=store)
    for stage in (0, 1) * 9:
        first(stage, 1)
    assert first.explain(1).decision == winner
    second = make(answers, Names(), stages=2, store=store)
    for _ in range(70):
        second(0, 1)
    assert second.explain(1).source == "stored"
    assert bool(second._knowledge.tunings) == is_open
    second(1, 1)
    assert not second._knowledge.tunings


def test_a_wrong_reference_is_taken_out_and_the_right_one_stays() -> None:
    selector = make(FAST, Names(reference="all zeros"), policy=Rounds(rounds=4))
    with pytest.warns(BestofWarning, match="'as is' was disqualified: wrong result: all zeros"):
        assert [selector(1) for _ in range(9)] == [RIGHT] * 9
    assert selector.explain(1).decision == "native"


def test_an_interrupt_of_a_comparison_leaves_it_undone() -> None:
    verifier = Names()
    selector = make(FAST_AND_WRONG, verifier)
    selector(1)
    verifier.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        selector(1)
    verifier.error = None
    with pytest.warns(BestofWarning, match="'broken' was disqualified"):
        assert [selector(1) for _ in range(9)] == [RIGHT] * 9


class Sums(Names):
    """Expects results of trusted alternatives too, where the budget allows it."""

    def expect_of_trusted(self, stage: int, args: tuple[Any, ...]) -> str:
        return RIGHT


@pytest.mark.parametrize("budget", [None, 1e-9])
def test_a_trusted_one_is_compared_once_within_the_budget(budget: float | None) -> None:
    verifier = Sums()
    selector = make(FAST, verifier, budget=budget, policy=Rounds(rounds=3))
    selector._knowledge.budget.is_on = True
    selector._knowledge.budget.book(1.0)
    assert [selector(1) for _ in range(9)] == [RIGHT] * 9
    assert verifier.judged.count(("as is", 0)) == (1 if budget is None else 0)


def test_a_trusted_one_that_is_wrong_is_taken_out() -> None:
    verifier = Sums()
    verifier.wrong = {"as is"}
    selector = make(FAST, verifier, budget=None)
    with pytest.warns(BestofWarning, match="'as is' was disqualified: wrong result"):
        assert [selector(1) for _ in range(9)] == [RIGHT] * 9
    assert selector.explain(1).decision == "native"
