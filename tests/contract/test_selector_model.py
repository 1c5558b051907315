"""A selector compared with a model of a few lines, over random sequences of hypothesis."""

from __future__ import annotations

import warnings
from statistics import median
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bestof import BestOf
from bestof.selection.passes import NEVER
from bestof.selection.state.journal import DriftEntry
from bestof.selection.state.sample_interval import FIRST, calls_between
from bestof.selection.trials.trial import detours

ROUNDS = 3
NAMES = ("a", "b", "c")
PINNED = 2
PROBLEMS = st.sampled_from((0, 1, 2))


class Model:
    """One problem, as the paper says it: in turn, so many rounds, the lowest median, the first of
    equals.

    Once settled, a call now and then is a sample; nine of these whose median is far off begin the
    rounds again, the winner first.
    """

    def __init__(self, pinned: str | None) -> None:
        self.samples: dict[str, list[float]] = {name: [] for name in NAMES}
        self.decision: str | None = pinned
        self.baseline = 0.0
        self.calls, self.sample_at = 0, NEVER
        self.met = False
        self.recent: list[float] = []
        self.rest = 0
        self.drifts: list[tuple[str, bool]] = []

    def next(self) -> str:
        return self.decision or min(self.samples, key=lambda name: len(self.samples[name]))

    def called(self, name: str, seconds: float | None) -> None:
        """Answered, or None: raised."""
        if self.decision is None:
            if seconds is not None:
                self.samples[name].append(seconds)
                self.decide()
        elif self.met:
            self.calls += 1
            if self.calls >= self.sample_at:
                self.sample_at = self.calls + calls_between(
                    -1.0 if seconds is None else seconds, self.calls
                )
                if seconds is not None and seconds >= 0.0:
                    self.sampled(seconds)
        self.met = self.met or seconds is not None

    def failed(self, name: str) -> None:
        del self.samples[name]

    def decide(self) -> None:
        if all(len(samples) >= ROUNDS for samples in self.samples.values()):
            self.decision = min(self.samples, key=lambda name: median(self.samples[name][:ROUNDS]))
            self.calls, self.sample_at = 0, FIRST if len(self.samples) > 1 else NEVER
            self.baseline = median(self.samples[self.decision])
            self.recent = []
            self.rest = 9 * 2 ** len(self.drifts) if self.drifts else 0
        elif len(self.samples) == 1:
            (self.decision,) = self.samples
            self.calls, self.sample_at = 0, NEVER

    def sampled(self, seconds: float) -> None:
        if self.rest > 0:
            self.rest -= 1
            return
        self.recent = [*self.recent, seconds][-9:]
        if len(self.recent) < 9:
            return
        now, before = max(median(self.recent), 1e-6), max(self.baseline, 1e-6)
        warm = bool(self.drifts) and self.drifts[-1][1]
        assert self.decision is not None
        if now > 1.25 * before or (2 * now < before and not warm):
            self.drifts.append((self.decision, now < before))
            order = sorted(
                self.samples, key=lambda name: (name != self.decision, NAMES.index(name))
            )
            self.samples, self.decision = {name: [] for name in order}, None


class Selecting(RuleBasedStateMachine):
    """Calls with arbitrary times, failures and interrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.seconds = 0.0
        self.raising: dict[str, BaseException] = {}
        self.called: list[str] = []
        self.models: dict[int, Model] = {}

    @initialize(pin=st.sampled_from((None, *NAMES)))
    def make(self, pin: str | None) -> None:
        self.pin = pin
        alternatives = [
            (name, lambda problem, name=name: self.run_alternative(name)) for name in NAMES
        ]
        self.selector = BestOf(
            "model",
            alternatives,
            lambda problem: problem,
            ROUNDS,
            float("inf"),
            clock=lambda: self.now,
            store=Nowhere(pin),
        )

    def run_alternative(self, name: str) -> str:
        self.called.append(name)
        self.now += self.seconds
        if name in self.raising:
            raise self.raising[name]
        return name

    def model(self, problem: int) -> Model:
        if problem not in self.models:
            self.models[problem] = Model(self.pin if problem == PINNED else None)
        return self.models[problem]

    def call(self, problem: int) -> str:
        self.called.clear()
        return str(self.selector(problem))

    @rule(problem=PROBLEMS, seconds=st.integers(0, 5))
    def calls(self, problem: int, seconds: int) -> None:
        self.calls_many(problem, seconds, 1)

    @rule(problem=PROBLEMS, seconds=st.sampled_from((1, 2, 5)), times=st.integers(20, 260))
    def calls_many(self, problem: int, seconds: int, times: int) -> None:
        model, self.seconds = self.model(problem), float(seconds)
        for _ in range(times):
            expected = model.next()
            assert self.call(problem) == expected
            assert self.called == [expected]
            model.called(expected, seconds)

    @rule(problem=PROBLEMS, seconds=st.integers(0, 5))
    def one_fails(self, problem: int, seconds: int) -> None:
        if problem == PINNED and self.pin is not None:
            return
        model, self.seconds = self.model(problem), float(seconds)
        if model.decision is not None or len(model.samples) == 1:
            return
        order = sorted(model.samples, key=NAMES.index)
        failing = model.next()
        self.raising = {failing: ValueError("no")}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = self.call(problem)
        self.raising = {}
        assert len(caught) == 1
        assert self.called == [failing, answer]
        assert answer == next(name for name in order if name != failing)
        model.failed(failing)
        model.called(answer, seconds)

    @rule(problem=PROBLEMS)
    def all_fail(self, problem: int) -> None:
        self.raising = {name: ValueError("all") for name in NAMES}
        model = self.model(problem)
        with pytest.raises(ValueError, match="all"):
            self.call(problem)
        model.called(model.next(), None)
        self.raising = {}

    @rule(problem=PROBLEMS)
    def interrupted(self, problem: int) -> None:
        self.raising = {name: KeyboardInterrupt() for name in NAMES}
        model = self.model(problem)
        expected = model.next()
        with pytest.raises(KeyboardInterrupt):
            self.call(problem)
        assert self.called == [expected]
        model.called(expected, None)
        self.raising = {}

    @rule(problem=PROBLEMS)
    def the_clock_goes_backwards(self, problem: int) -> None:
        model, self.seconds = self.model(problem), -1.0
        expected = model.next()
        assert self.call(problem) == expected
        if model.decision is not None:
            model.called(expected, -1.0)

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
            trials = {
                row.name: row.trials for row in report.alternatives if row.status != "disqualified"
            }
            assert trials == {name: len(samples) for name, samples in model.samples.items()}
            told = [
                entry for entry in self.selector.journal.entries() if isinstance(entry, DriftEntry)
            ]
            drifts = [
                (entry.alternative, entry.after < entry.before)
                for entry in told
                if entry.problem == problem
            ]
            assert drifts == model.drifts

    @invariant()
    def nothing_is_left_open(self) -> None:
        assert detours == []


class Nowhere:
    """A store that keeps nothing, and has a pin."""

    def __init__(self, pin: str | None) -> None:
        self.pin = pin

    def load(self, *key: str) -> None:
        return None

    def save(self, record: Any) -> None:
        pass

    def pinned(self, selector: str, problem: str | None, host: str) -> str | None:
        return self.pin if problem == str(PINNED) else None


Selecting.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestSelecting = Selecting.TestCase
