"""What a selector knows of its problems: searches under way, decisions, winners; bounded, and kept
in its store."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from math import inf

from bestof.selection.alternative import Alternative, Function
from bestof.selection.decision_store import DecisionStore
from bestof.selection.duration import duration
from bestof.selection.group_pass import Pass
from bestof.selection.host import host
from bestof.selection.hot_path import Winner
from bestof.selection.journal import DecisionEntry, Journal
from bestof.selection.notice import warn
from bestof.selection.open_passes import OpenPasses
from bestof.selection.open_tuning import open_tuning
from bestof.selection.policies import Drift
from bestof.selection.policy_choice import PolicyChoice
from bestof.selection.store.protocol import Store
from bestof.selection.trial import Trial
from bestof.selection.tuning import SAMPLES_KEPT, Decision, Teaching, Tuning, problem_text
from bestof.selection.winner import PythonWinner

_log = logging.getLogger("bestof")


class Knowledge:
    """What one selector knows: its alternatives, its problems, and what was found out about them.

    A problem that is met gets a `Tuning` in `tunings`, where its trials are booked. With enough of
    these it gets a `Decision` in `decisions`, which is written to the store, and a winner in
    `settled`, the dictionary that the hot path reads. A problem that is not called any more moves
    from `settled` to `older`, and from there out of memory. A winner that fails, or drifts, brings
    its problem back to `tunings`.

    Whatever threads share changes with `lock` held. Warnings (`notices`) and entries for listeners
    wait until it is free.
    `max_problems`: how many settled and how many unsettled problems are remembered.
    """

    def __init__(
        self,
        name: str,
        alternatives: tuple[Alternative, ...],
        *,
        choice: PolicyChoice,
        find_store: Callable[[], Store | None],
        check_every: int | None,
        max_problems: int,
        journal: Journal,
    ) -> None:
        self.name = name
        self.alternatives = alternatives
        self.versions = tuple(alternative.version for alternative in alternatives)
        self.names = [alternative.name for alternative in alternatives]
        self.grouped = alternatives[0].is_group
        self.functions = tuple(alternative.stages for alternative in alternatives)
        self.stages: tuple[dict[int, Function], ...] = tuple(
            dict(enumerate(stages)) for stages in self.functions
        )
        self.stage_count = len(self.functions[0]) if self.grouped else 0
        self.check_every = check_every
        self.choice = choice
        self.stored = DecisionStore(name, find_store)
        self._find_store = find_store
        self._max_problems = max_problems
        self.lock = threading.RLock()
        self.settled: dict[Hashable, PythonWinner] = {}
        self.older: dict[Hashable, PythonWinner] = {}
        self.decisions: dict[Hashable, Decision] = {}
        self.tunings: dict[Hashable, Tuning] = {}
        self.drifts: dict[Hashable, Drift] = {}  # of settled problems that were sampled
        self.notices: list[str] = []  # warnings for when the lock is free
        self.journal = journal
        self.trials = 0
        self.trial_seconds = 0.0
        self.loss_seconds = 0.0
        self._retired_calls = 0  # of winners that are remembered no longer
        self._retired_seconds = 0.0  # what these calls saved

    # Winners

    def winner(self, problem: Hashable) -> PythonWinner | None:
        winner = self.settled.get(problem)
        if winner is None:
            winner = self.older.pop(problem, None)
            if winner is not None:
                self.remember(problem, winner)
        return winner

    def remember(self, problem: Hashable, winner: PythonWinner) -> None:
        """Two generations bound the memory without a write on the hot path: what was not used while
        the younger one filled up is forgotten."""
        self.older.pop(problem, None)
        if len(self.settled) >= self._max_problems // 2 and problem not in self.settled:
            for forgotten, old in self.older.items():
                self._retire(forgotten, old)
                self.decisions.pop(forgotten, None)
            # The hot path holds `settled`: a call that misses it meanwhile waits for the lock, and
            # finds `older`.
            self.older = dict(self.settled)
            self.settled.clear()
        self.settled[problem] = winner

    def _retire(self, problem: Hashable, winner: PythonWinner) -> None:
        """Book what a winner did before it is let go; a call that another thread makes right now
        may be missed."""
        self._retired_calls += winner.calls
        self._retired_seconds += self._saved_by(problem, winner)
        self.drifts.pop(problem, None)

    def _saved_by(self, problem: Hashable, winner: PythonWinner) -> float:
        decision = self.decisions.get(problem)
        gain = None if decision is None else decision.gain
        return 0.0 if gain is None else gain * winner.calls / len(winner.functions)

    @property
    def settled_calls(self) -> int:
        """How many calls went straight to a winner, whether it then raised or not."""
        with self.lock:
            return self._retired_calls + sum(winner.calls for _, winner in self.winners())

    @property
    def saved_seconds(self) -> float:
        """What these calls are estimated to have saved: for each problem their number times the
        difference of the medians of the first alternative and the chosen one. Nothing is counted
        where either was not measured."""
        with self.lock:
            return self._retired_seconds + sum(
                self._saved_by(problem, winner) for problem, winner in self.winners()
            )

    def winners(self) -> list[tuple[Hashable, PythonWinner]]:
        return [*self.older.items(), *self.settled.items()]

    # Searches

    def hold(self, tuning: Tuning) -> None:
        while len(self.tunings) >= self._max_problems:
            oldest = next(iter(self.tunings))
            evicted = self.tunings.pop(oldest)
            self.decisions.pop(oldest, None)
            self._keep(evicted)
        self.tunings[tuning.problem] = tuning

    def reopen(self, tuning: Tuning) -> None:
        """A problem that was settled is searched again, as its winner no longer runs, or has
        drifted. Called with the lock held."""
        problem = tuning.problem
        winner = self.settled.pop(problem, None) or self.older.pop(problem, None)
        if winner is not None:
            self._retire(problem, winner)
            decision = self.decisions.get(problem)
            if self.grouped and decision is not None:
                earlier = winner.earlier
                tuning.passes = earlier if isinstance(earlier, OpenPasses) else tuning.passes
                tuning.passes.retire(winner, decision.position)
        tuning.decision = None
        tuning.unverified.clear()
        tuning.retries.clear()
        self.decisions.pop(problem, None)
        if self.tunings.get(problem) is not tuning:
            self.hold(tuning)

    def conclude(self, tuning: Tuning) -> None:
        """Take what an attempt brought: perhaps a decision. Called by attempts, with the lock
        held."""
        problem = tuning.problem
        if self.tunings.get(problem) is not tuning and (
            problem in self.tunings or problem in self.settled or problem in self.older
        ):
            return  # forgotten, and known again since by another search, whose decision stands
        if tuning.decision is None:
            winner = tuning.search.winner
            if winner is not None:
                self.settle(
                    tuning, winner, "measured" if tuning.candidates[winner].samples else "only"
                )
            elif tuning.lone is not None:
                self.settle(tuning, tuning.lone, "only")
        elif (
            self.tunings.get(tuning.problem) is tuning
        ):  # else it was published, and perhaps forgotten since
            self.publish(tuning)

    def book(
        self,
        tuning: Tuning,
        trial: Trial,
        begun: Pass | None,
        stage: int,
        position: int,
        seconds: float,
        timed: bool,
    ) -> None:
        """Book one answered call: the stage of its pass, its time, what was met inside. Called with
        the lock held."""
        clean, whole, total = trial.clean, True, seconds
        if not 0.0 <= seconds < inf:  # a clock that goes backwards says nothing
            seconds, total, clean = 0.0, 0.0, False
        if begun is not None:
            begun.seconds = total = begun.seconds + seconds
            begun.clean = clean = begun.clean and clean
            whole = tuning.passes.close_stage(begun, stage)
        if tuning.decision is not None:
            if position in tuning.retried and self.decisions.get(tuning.problem) is tuning.decision:
                tuning.retried.clear()
                tuning.former = tuning.decision.position
                self.reopen(tuning)  # it runs now: it is measured against the others' stored times
            else:
                self.conclude(tuning)
            return
        search = tuning.search
        if timed:
            candidate = tuning.candidates[position]
            if trial.children is not None:
                candidate.adopt(trial.children)
            self.journal.add_trial(
                (tuning.problem, candidate.alternative.name, stage, seconds, clean)
            )
            self.trials += 1
            self.trial_seconds += seconds
            candidate.seconds += seconds
            if whole:
                candidate.calls += 1
                if clean:
                    if len(candidate.samples) < SAMPLES_KEPT:
                        candidate.samples.append(total)
                    tuning.asked = None
                    tuning.unsaved = True
                    search.tell(position, total)
        if search.winner is not None or tuning.lone is not None:
            self.conclude(tuning)
        elif tuning.asks_ahead:
            tuning.asked = search.ask()

    def settle(self, tuning: Tuning, position: int, source: str) -> None:
        winner = tuning.candidates[position]
        evidence = tuple(
            candidate.evidence() for candidate in tuning.candidates if candidate.applies
        )
        decision = Decision(
            tuning.problem, winner.alternative.name, position, source, evidence, tuning.history
        )
        tuning.decision = decision
        tuning.asked = None
        tuning.calls = 0
        self.decisions[tuning.problem] = decision
        self.journal.add(DecisionEntry(tuning.problem, decision.alternative, source))
        best = decision.seconds
        for candidate in tuning.candidates:
            if best is not None:
                self.loss_seconds += max(0.0, candidate.seconds - candidate.calls * best)
            candidate.seconds, candidate.calls = 0.0, 0
        if _log.isEnabledFor(logging.INFO):
            _log.info(
                "%s: %s (%s)%s",
                self.where(tuning.problem),
                decision.alternative,
                source,
                _gain(decision),
            )
        if tuning.unsaved:
            self._save(tuning)
        self.publish(tuning)

    def publish(self, tuning: Tuning) -> None:
        """Let calls of a settled problem take the hot path, as soon as nothing needs them on the
        long way."""
        decision, problem = tuning.decision, tuning.problem
        assert decision is not None
        held = self.tunings.get(problem)
        if held is not tuning and (
            held is not None or problem in self.settled or problem in self.older
        ):
            return  # an attempt of a search that another one has replaced since
        if not tuning.unverified and not tuning.retries and not self.watches(tuning):
            if tuning.unsaved:  # an interrupt came between the decision and its record
                self._save(tuning)
            self.tunings.pop(problem, None)
            winner = Winner(self.functions[decision.position], self.choice.first_sample(decision))
            tuning.passes.prune()
            if tuning.passes:
                winner.earlier = tuning.passes
            self.remember(problem, winner)

    def watches(self, tuning: Tuning) -> bool:
        """Whether calls of a settled problem stay on the long way: to be compared every so often,
        or because the winner calls this selector again with the same problem, which would never end
        on the hot path."""
        assert tuning.decision is not None
        position = tuning.decision.position
        if self.check_every is not None and position != tuning.remaining()[0]:
            return True
        return tuning.candidates[position].recursive

    # Copies

    def teachings(self) -> list[Teaching]:
        """Every decision, for a selector of the same alternatives."""
        with self.lock:
            taught = []
            for problem, decision in self.decisions.items():
                tuning = self.tunings.get(problem)
                if tuning is None:
                    taught.append(Teaching(decision))
                else:
                    recursive = tuning.candidates[decision.position].recursive
                    taught.append(Teaching(decision, recursive, frozenset(tuning.unverified)))
            return taught

    def learn(self, teachings: Iterable[Teaching]) -> None:
        """Take over decisions that a selector of the same alternatives has made."""
        with self.lock:
            for taught in teachings:
                decision = taught.decision
                if self.check_every is not None or taught.recursive or taught.unverified:
                    tuning = open_tuning(
                        decision.problem, self.alternatives, self.stages, self.choice.current()
                    )
                    if not tuning.candidates[decision.position].remains:
                        continue
                    tuning.inherit(taught)
                    self.hold(tuning)
                    self.decisions[decision.problem] = decision
                    self.publish(tuning)
                else:
                    self.decisions[decision.problem] = decision
                    winner = Winner(
                        self.functions[decision.position], self.choice.first_sample(decision)
                    )
                    self.remember(decision.problem, winner)

    # The store

    def _save(self, tuning: Tuning) -> None:
        record = tuning.record(self.name, host(), time.time())
        if record is not None:
            self.stored.save(record)
        tuning.unsaved = False  # not before: an interrupt in between would lose the record

    def _keep(self, tuning: Tuning) -> None:
        """Save the evidence of a search that is not over.

        That of a reopened race, and of one that verifies a stored decision, is left: it says
        nothing beside the older evidence of those not tried yet, and the decision in the store
        stands.
        """
        if tuning.unsaved and not tuning.history and tuning.former is None:
            self._save(tuning)

    def flush(self) -> None:
        """Keep the evidence of problems that are not settled yet, so that the next run goes on
        where this one ended."""
        with self.lock:
            for tuning in self.tunings.values():
                self._keep(tuning)

    def asked_store(self) -> Store | None:
        """Return the store, if this selector has met a problem; to find the default one may create
        it."""
        return self._find_store() if self.decisions or self.tunings else None

    def after_fork(self) -> None:
        """In a child process: decisions stay, trials that other threads had begun in the parent are
        dropped."""
        self.lock = threading.RLock()
        for tuning in self.tunings.values():
            tuning.passes.clear()

    # Words

    def tell(self) -> None:
        while self.notices:
            warn(self.notices.pop(0))

    def where(self, problem: Hashable) -> str:
        return f"BestOf({self.name!r}), problem {problem_text(problem)}"


def _gain(decision: Decision) -> str:
    """What a decision saves, in words; nothing where the first alternative won, or was not
    measured."""
    gain = decision.gain
    if gain is None or gain <= 0.0:
        return ""
    return f", saves {duration(gain)} a call over {decision.evidence[0].alternative!r}"
