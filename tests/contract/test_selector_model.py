"""A selector against a model of a few lines, over whatever sequences hypothesis thinks of."""

from __future__ import annotations

import warnings
from statistics import median
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bestof import BestOf
from bestof.selection.trial import detours

ROUNDS = 3
NAMES = ("a", "b", "c")
PROBLEMS = st.sampled_from((0, 1, 2))


class Model:
    """One problem, as the paper says it: in turn, so many rounds, the lowest median, the first of equals."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {name: [] for name in NAMES}
        self.decision: str | None = None

    def next(self) -> str:
        return self.decision or min(self.samples, key=lambda name: len(self.samples[name]))

    def called(self, name: str, seconds: float) -> None:
        if self.decision is None:
            self.samples[name].append(seconds)
            self.decide()

    def failed(self, name: str) -> None:
        del self.samples[name]

    def decide(self) -> None:
        if all(len(samples) >= ROUNDS for samples in self.samples.values()):
            self.decision = min(self.samples, key=lambda name: median(self.samples[name][:ROUNDS]))
        elif len(self.samples) == 1:
            (self.decision,) = self.samples


class Selecting(RuleBasedStateMachine):
    """Calls with arbitrary times, failures and interrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.seconds = 0.0
        self.raising: dict[str, BaseException] = {}
        self.called: list[str] = []
        self.models: dict[int, Model] = {}

    @initialize()
    def make(self) -> None:
        alternatives = [(name, lambda problem, name=name: self.run_alternative(name)) for name in NAMES]
        self.selector = BestOf(
            "model",
            alternatives,
            lambda problem: problem,
            ROUNDS,
            float("inf"),
            clock=lambda: self.now,
            store=Nowhere(),
        )

    def run_alternative(self, name: str) -> str:
        self.called.append(name)
        self.now += self.seconds
        if name in self.raising:
            raise self.raising[name]
        return name

    def model(self, problem: int) -> Model:
        return self.models.setdefault(problem, Model())

    def call(self, problem: int) -> str:
        self.called.clear()
        return str(self.selector(problem))

    @rule(problem=PROBLEMS, seconds=st.integers(0, 5))
    def calls(self, problem: int, seconds: int) -> None:
        model, self.seconds = self.model(problem), float(seconds)
        expected = model.next()
        assert self.call(problem) == expected
        assert self.called == [expected]
        model.called(expected, seconds)

    @rule(problem=PROBLEMS, seconds=st.integers(0, 5))
    def one_fails(self, problem: int, seconds: int) -> None:
        model, self.seconds = self.model(problem), float(seconds)
        if model.decision is not None or len(model.samples) == 1:
            return
        failing = model.next()
        self.raising = {failing: ValueError("no")}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = self.call(problem)
        self.raising = {}
        assert len(caught) == 1
        assert self.called == [failing, answer]
        assert answer == next(name for name in model.samples if name != failing)
        model.failed(failing)
        model.called(answer, seconds)

    @rule(problem=PROBLEMS)
    def all_fail(self, problem: int) -> None:
        self.raising = {name: ValueError("all") for name in NAMES}
        with pytest.raises(ValueError, match="all"):
            self.call(problem)
        self.raising = {}

    @rule(problem=PROBLEMS)
    def interrupted(self, problem: int) -> None:
        self.raising = {name: KeyboardInterrupt() for name in NAMES}
        expected = self.model(problem).next()
        with pytest.raises(KeyboardInterrupt):
            self.call(problem)
        assert self.called == [expected]
        self.raising = {}

    @rule(problem=PROBLEMS)
    def the_clock_goes_backwards(self, problem: int) -> None:
        self.seconds = -1.0
        assert self.call(problem) == self.model(problem).next()
        self.seconds = 0.0

    @rule(problem=PROBLEMS)
    def first_only(self, problem: int) -> None:
        BestOf.use_always_the_first_alternative()
        try:
            assert self.call(problem) == "a"
        finally:
            BestOf.use_the_best_alternative()

    @invariant()
    def decisions_agree(self) -> None:
        for problem, model in self.models.items():
            report = self.selector.explain(problem)
            assert report.decision == model.decision, (problem, model.samples)
            trials = {row.name: row.trials for row in report.alternatives if row.status != "disqualified"}
            assert trials == {name: len(samples) for name, samples in model.samples.items()}

    @invariant()
    def nothing_is_left_open(self) -> None:
        assert detours == []


class Nowhere:
    """A store that keeps nothing."""

    def load(self, *key: str) -> None:
        return None

    def save(self, record: Any) -> None:
        pass

    def pinned(self, *key: str | None) -> None:
        return None


Selecting.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestSelecting = Selecting.TestCase
