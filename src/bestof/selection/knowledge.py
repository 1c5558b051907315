"""What a selector knows of its problems: searches under way, decisions, winners; bounded, and kept in its store."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Hashable

from bestof.selection import registry
from bestof.selection.alternative import Alternative, Function
from bestof.selection.decision_store import DecisionStore
from bestof.selection.duration import duration
from bestof.selection.host import host
from bestof.selection.hot_path import HotPath, Winner
from bestof.selection.journal import DecisionEntry, Journal
from bestof.selection.notice import warn
from bestof.selection.open_passes import OpenPasses
from bestof.selection.policies import Drift
from bestof.selection.store.protocol import Store
from bestof.selection.tuning import Decision, Tuning, problem_text
from bestof.selection.winner import NEVER, PythonWinner

_log = logging.getLogger("bestof")


class Knowledge(HotPath):
    """Problems on their way to a decision, and those that have one. Whatever threads share changes with `_lock` held;
    warnings and listeners wait until it is free.

    store_named: whether `store` was given, None being a store too. max_problems: of each kind so many are remembered.
    """

    def __init__(
        self,
        name: str,
        alternatives: tuple[Alternative, ...],
        *,
        store: Store | None,
        store_named: bool,
        check_every: int | None,
        max_problems: int,
        journal: Journal,
    ) -> None:
        self.name = name
        self._alternatives = alternatives
        self.alternative_names = tuple(alternative.name for alternative in alternatives)
        self.versions = tuple(alternative.version for alternative in alternatives)
        self.number = 0
        self._names = [alternative.name for alternative in alternatives]
        self._grouped = alternatives[0].is_group
        self._functions = tuple(alternative.stages for alternative in alternatives)
        self._stages: tuple[dict[int, Function], ...] = tuple(
            dict(enumerate(stages)) for stages in self._functions
        )
        self._first = self._functions[0]
        self._stage_count = len(self._functions[0]) if self._grouped else 0
        self._check_every = check_every
        self._own_store = store
        self._store_named = store_named
        # Through a weak reference, for a circle would keep a dropped selector until the next collection.
        this = weakref.ref(self)
        self._stored = DecisionStore(name, lambda: _store_of(this()))
        self._max_problems = max_problems
        self._lock = threading.RLock()
        self._settled = {}
        self._older: dict[Hashable, PythonWinner] = {}
        self._decisions: dict[Hashable, Decision] = {}
        self._tunings: dict[Hashable, Tuning] = {}
        self._drifts: dict[
            Hashable, Drift
        ] = {}  # of the problems in `_settled` and `_older` that were sampled
        self._notices: list[str] = []  # warnings for when the lock is free
        self.journal = journal
        self.trials = 0
        self.trial_seconds = 0.0
        self.loss_seconds = 0.0
        self._retired_calls = 0  # of winners that are remembered no longer
        self._retired_seconds = 0.0  # what these calls saved

    # Winners

    def _winner(self, problem: Hashable) -> PythonWinner | None:
        winner = self._settled.get(problem)
        if winner is None:
            winner = self._older.pop(problem, None)
            if winner is not None:
                self._remember(problem, winner)
        return winner

    def _remember(self, problem: Hashable, winner: PythonWinner) -> None:
        """Two generations bound the memory without a write on the hot path: what was not used while the younger one
        filled up is forgotten."""
        self._older.pop(problem, None)
        if len(self._settled) >= self._max_problems // 2 and problem not in self._settled:
            for forgotten, old in self._older.items():
                self._retire(forgotten, old)
                self._decisions.pop(forgotten, None)
            self._older, self._settled = self._settled, {}
        self._settled[problem] = winner

    def _retire(self, problem: Hashable, winner: PythonWinner) -> None:
        """Book what a winner did before it is let go; a call that another thread makes right now may be missed."""
        self._retired_calls += winner.calls
        self._retired_seconds += self._saved_by(problem, winner)
        self._drifts.pop(problem, None)

    def _saved_by(self, problem: Hashable, winner: PythonWinner) -> float:
        decision = self._decisions.get(problem)
        gain = None if decision is None else decision.gain
        return 0.0 if gain is None else gain * winner.calls / len(winner.functions)

    def _first_sample(self, decision: Decision) -> int:  # noqa: ARG002  for whoever watches for drift
        """Which settled call of a decision is to be sampled first."""
        return NEVER

    @property
    def settled_calls(self) -> int:
        """How many calls went straight to a winner, whether it then raised or not."""
        with self._lock:
            return self._retired_calls + sum(winner.calls for _, winner in self._winners())

    @property
    def saved_seconds(self) -> float:
        """What these calls are estimated to have saved: for each problem their number times the difference of the
        medians of the first alternative and the chosen one. Nothing is counted where either was not measured."""
        with self._lock:
            return self._retired_seconds + sum(
                self._saved_by(problem, winner) for problem, winner in self._winners()
            )

    def _winners(self) -> list[tuple[Hashable, PythonWinner]]:
        return [*self._older.items(), *self._settled.items()]

    # Searches

    def _hold(self, tuning: Tuning) -> None:
        while len(self._tunings) >= self._max_problems:
            oldest = next(iter(self._tunings))
            evicted = self._tunings.pop(oldest)
            self._decisions.pop(oldest, None)
            self._keep(evicted)
        self._tunings[tuning.problem] = tuning

    def reopen(self, tuning: Tuning) -> None:
        """A problem that was settled is searched again, as its winner no longer runs, or has drifted. Called with the
        lock held."""
        problem = tuning.problem
        winner = self._settled.pop(problem, None) or self._older.pop(problem, None)
        if winner is not None:
            self._retire(problem, winner)
            decision = self._decisions.get(problem)
            if self._grouped and decision is not None:
                earlier = winner.earlier
                tuning.passes = earlier if isinstance(earlier, OpenPasses) else tuning.passes
                tuning.passes.retire(winner, decision.position)
        tuning.decision = None
        tuning.unverified.clear()
        self._decisions.pop(problem, None)
        if self._tunings.get(problem) is not tuning:
            self._hold(tuning)

    def conclude(self, tuning: Tuning) -> None:
        """Take what an attempt brought: perhaps a decision. Called by attempts, with the lock held."""
        problem = tuning.problem
        if self._tunings.get(problem) is not tuning and (
            problem in self._tunings or problem in self._settled or problem in self._older
        ):
            return  # forgotten, and known again since by another search, whose decision stands
        if tuning.decision is None:
            winner = tuning.search.winner
            if winner is not None:
                self._settle(
                    tuning, winner, "measured" if tuning.candidates[winner].samples else "only"
                )
            elif tuning.lone is not None:
                self._settle(tuning, tuning.lone, "only")
        elif (
            self._tunings.get(tuning.problem) is tuning
        ):  # else it was published, and perhaps forgotten since
            self._publish(tuning)

    def _settle(self, tuning: Tuning, position: int, source: str) -> None:
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
        self._decisions[tuning.problem] = decision
        self.journal.add(DecisionEntry(tuning.problem, decision.alternative, source))
        best = decision.seconds
        for candidate in tuning.candidates:
            if best is not None:
                self.loss_seconds += max(0.0, candidate.seconds - candidate.calls * best)
            candidate.seconds, candidate.calls = 0.0, 0
        if _log.isEnabledFor(logging.INFO):
            _log.info(
                "%s: %s (%s)%s",
                self._where(tuning.problem),
                decision.alternative,
                source,
                _gain(decision),
            )
        if tuning.unsaved:
            self._save(tuning)
        self._publish(tuning)

    def _publish(self, tuning: Tuning) -> None:
        """Let calls of a settled problem take the hot path, as soon as nothing needs them on the long way."""
        decision, problem = tuning.decision, tuning.problem
        assert decision is not None
        held = self._tunings.get(problem)
        if held is not tuning and (
            held is not None or problem in self._settled or problem in self._older
        ):
            return  # an attempt of a search that another one has replaced since
        if not tuning.unverified and not self._watches(tuning):
            if tuning.unsaved:  # an interrupt came between the decision and its record
                self._save(tuning)
            self._tunings.pop(problem, None)
            winner = Winner(self._functions[decision.position], self._first_sample(decision))
            tuning.passes.prune()
            if tuning.passes:
                winner.earlier = tuning.passes
            self._remember(problem, winner)

    def _watches(self, tuning: Tuning) -> bool:
        """Whether calls of a settled problem stay on the long way: to be compared every so often, or because the winner
        calls this selector again with the same problem, which would never end on the hot path."""
        assert tuning.decision is not None
        position = tuning.decision.position
        if self._check_every is not None and position != tuning.remaining()[0]:
            return True
        return tuning.candidates[position].recursive

    # The store

    def _save(self, tuning: Tuning) -> None:
        record = tuning.record(self.name, host(), time.time())
        if record is not None:
            self._stored.save(record)
        tuning.unsaved = False  # not before: an interrupt in between would lose the record

    def _keep(self, tuning: Tuning) -> None:
        """Save the evidence of a search that is not over.

        That of a reopened race, and of one that verifies a stored decision, is left: it says nothing beside the older
        evidence of those not tried yet, and the decision in the store stands.
        """
        if tuning.unsaved and not tuning.history and tuning.former is None:
            self._save(tuning)

    def flush(self) -> None:
        """Keep the evidence of problems that are not settled yet, so that the next run goes on where this one ended."""
        with self._lock:
            for tuning in self._tunings.values():
                self._keep(tuning)

    def _store(self) -> Store | None:
        return self._own_store if self._store_named else registry.shared_store()

    def asked_store(self) -> Store | None:
        """Return the store, if this selector has met a problem; to find the default one may create it."""
        return self._store() if self._decisions or self._tunings else None

    def after_fork(self) -> None:
        """In a child process: decisions stay, trials that other threads had begun in the parent are dropped."""
        self._lock = threading.RLock()
        for tuning in self._tunings.values():
            tuning.passes.clear()

    # Words

    def _warn(self) -> None:
        while self._notices:
            warn(self._notices.pop(0))

    def _where(self, problem: Hashable) -> str:
        return f"BestOf({self.name!r}), problem {problem_text(problem)}"


def _store_of(selector: Knowledge | None) -> Store | None:
    return None if selector is None else selector._store()


def _gain(decision: Decision) -> str:
    """What a decision saves, in words; nothing where the first alternative won, or was not measured."""
    gain = decision.gain
    if gain is None or gain <= 0.0:
        return ""
    return f", saves {duration(gain)} a call over {decision.evidence[0].alternative!r}"
