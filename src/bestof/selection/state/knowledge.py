"""The memory of one selector: searches under way, decisions and winners by problem."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from math import inf

from bestof.entries import entries
from bestof.selection.hot_path import Winner
from bestof.selection.identity.alternative import Alternative, Function
from bestof.selection.identity.host import host
from bestof.selection.identity.problem import canonical, problem_text
from bestof.selection.notice import warn_of_all
from bestof.selection.passes import OpenPasses, Pass, PythonWinner
from bestof.selection.policies import Drift
from bestof.selection.state.budget import Budget
from bestof.selection.state.candidate import Candidate
from bestof.selection.state.decision import Decision
from bestof.selection.state.decision_store import DecisionStore
from bestof.selection.state.family import Family, SharedSearch
from bestof.selection.state.journal import DecisionEntry, Journal
from bestof.selection.state.lock import current_lock
from bestof.selection.state.lock_writer import LockWriter
from bestof.selection.state.policy_choice import PolicyChoice
from bestof.selection.state.savings import Savings
from bestof.selection.state.trial_costs import TrialCosts
from bestof.selection.state.tuning import Tuning
from bestof.selection.store.protocol import Store
from bestof.selection.store.record import Evidence, Record
from bestof.selection.trials.trial import Trial
from bestof.selection.trials.verifier import Verifier

_log = logging.getLogger("bestof")


class Knowledge:
    """The memory of one selector: its alternatives, its problems and their decisions.

    A new problem gets a `Tuning` in `tunings`, where its trials are booked. After enough trials it
    gets a `Decision` in `decisions`, which is written to the store, and a winner in `settled`, the
    dictionary that the hot path reads. A problem that is no longer called moves from `settled` to
    `older`, and from there out of memory. If a winner fails or drifts, its problem goes back to
    `tunings`. `costs` has what all trials have cost.

    Shared state changes only while `lock` is held. Warnings (`notices`) and entries for listeners
    wait until the lock is free. `max_problems` bounds the number of settled problems in memory, and
    that of unsettled ones.
    """

    def __init__(
        self,
        name: str,
        alternatives: tuple[Alternative, ...],
        *,
        choice: PolicyChoice,
        find_store: Callable[[], Store | None],
        check_every: int | None,
        verifier: Verifier | None,
        max_problems: int,
        journal: Journal,
        plain: bool,
        family: Family,
        budget: Budget,
        share: float | None,
    ) -> None:
        self.name = name
        self.alternatives = alternatives
        self.versions = tuple(alternative.version for alternative in alternatives)
        # (alternative, stored version) -> the version for which its evidence is valid
        self._versions_met: dict[tuple[str, str], str] = {}
        self.names = [alternative.name for alternative in alternatives]
        self.grouped = alternatives[0].is_group
        self.functions = tuple(alternative.stages for alternative in alternatives)
        self.stages: tuple[dict[int, Function], ...] = tuple(
            dict(enumerate(stages)) for stages in self.functions
        )
        self.refused = tuple(
            Candidate.refused(alternative, stages)
            for alternative, stages in zip(alternatives, self.stages, strict=True)
        )
        self.stage_count = len(self.functions[0]) if self.grouped else 0
        self.check_every = check_every
        self.verifier = verifier
        self._checks = not plain
        # Trials are timed calls, and nothing else. What is hopeless is asked just before a trial.
        self._asks_ahead = (
            plain and not self.grouped and all(one.hopeless is None for one in alternatives)
        )
        self.choice = choice
        self.budget = budget
        self.costs = TrialCosts(budget, share, choice, checks=not plain)
        self.stored = DecisionStore(name, find_store)
        self._remembered: dict[str, Record] = {}  # from before the alternatives changed
        # Evidence of alternatives that the selector had, and may have again.
        self._others: dict[str, tuple[Evidence, ...]] = {}
        self._max_problems = max_problems
        self.family = family
        self.lock = family.lock
        self.settled: dict[Hashable, PythonWinner] = {}
        self.older: dict[Hashable, PythonWinner] = {}
        self.decisions: dict[Hashable, Decision] = {}
        self.tunings: dict[Hashable, Tuning] = {}
        self.drifts: dict[Hashable, Drift] = {}  # of settled problems that were sampled
        self.notices: list[str] = []  # warnings for when the lock is free
        self.journal = journal
        self.earlier: dict[Hashable, Savings] = {}  # by winners before the present one
        self._retired = Savings()  # by winners of problems that have left memory
        family.join(self)

    # Winners

    def winner(self, problem: Hashable) -> PythonWinner | None:
        """Return the winner of a problem; one from `older` moves back to `settled`."""
        winner = self.settled.get(problem)
        if winner is None:
            winner = self.older.get(problem)
            if winner is not None:
                self.remember(problem, winner)
        return winner

    def remember(self, problem: Hashable, winner: PythonWinner) -> None:
        """Put a winner into `settled`, and bound the memory.

        There are two generations, so that the hot path need not write. When `settled` is full, it
        becomes `older`, and the problems of the previous `older` are evicted.
        """
        if len(self.settled) >= self._max_problems // 2 and problem not in self.settled:
            for forgotten, old in entries(self.older):
                if forgotten != problem:
                    self._retire(forgotten, old)
                    self._forget(forgotten)
                self.older.pop(forgotten, None)
            # The hot path holds this dictionary, so it is emptied in place. A call that misses it
            # meanwhile waits for the lock and finds the winner in `older`.
            self.older = dict(self.settled)
            self.settled.clear()
        self.settled[problem] = winner
        self.older.pop(problem, None)

    def _retire(self, problem: Hashable, winner: PythonWinner) -> None:
        """Book what a winner did. A call that another thread makes now may not be counted."""
        earlier = self.earlier.get(problem, Savings())
        self.earlier[problem] = earlier.after(winner, self.decisions.get(problem))
        self.drifts.pop(problem, None)

    def _forget(self, problem: Hashable) -> None:
        """Drop the decision of a problem that leaves memory. What it has saved counts."""
        self.decisions.pop(problem, None)
        self._retired = self._retired.plus(self.earlier.pop(problem, Savings()))

    def savings(self) -> Savings:
        """Return what all winners have saved so far."""
        with self.lock:
            total = self._retired
            for earlier in self.earlier.values():
                total = total.plus(earlier)
            for problem, winner in self.winners():
                total = total.after(winner, self.decisions.get(problem))
            return total

    def winners(self) -> list[tuple[Hashable, PythonWinner]]:
        """Return the winners in memory, by problem."""
        return [*self.older.items(), *self.settled.items()]

    # Searches

    def hold(self, tuning: Tuning) -> None:
        """Add a search that is complete; calls may use it from now on.

        If there are too many, evict the oldest and save its evidence.
        """
        while len(self.tunings) >= self._max_problems:
            oldest = next(iter(self.tunings))
            evicted = self.tunings.pop(oldest)
            self._forget(oldest)
            self.leave(evicted)
            self._keep(evicted)
        # Others may have gone on with a shared search by the next call.
        ahead = self._asks_ahead and not tuning.awaits_store and not self.family.is_shared
        tuning.asks_ahead = ahead and bool(getattr(tuning.search, "asks_ahead", False))
        self.tunings[tuning.problem] = tuning
        if tuning.decision is None:
            for writer in LockWriter.active:
                writer.opened(self.name, problem_text(tuning.problem))

    def searches(self) -> dict[Hashable, Tuning]:
        """Return the searches under way, without problems that are settled but stay here."""
        return {one.problem: one for one in self.tunings.values() if one.decision is None}

    def give_up(self, problem: Hashable) -> None:
        """End a search without a decision, and save its evidence."""
        tuning = self.tunings.pop(problem)
        self._forget(problem)
        self.leave(tuning)
        self._keep(tuning)

    def share(self, tuning: Tuning) -> None:
        """Take part in the search of other selectors of the same functions, or offer this one.

        It is the search of those in which the same alternatives remain. Called with the lock held.
        """
        shared = self.family.searches.get(_shared_key(tuning))
        if shared is None:
            own = [candidate.samples for candidate in tuning.candidates]
            shared = SharedSearch(tuning.search, own)
            self.family.searches[_shared_key(tuning)] = shared
        else:
            tuning.search = shared.search
            for candidate, samples in zip(tuning.candidates, shared.samples, strict=True):
                candidate.samples = samples
        tuning.shared = shared

    def leave(self, tuning: Tuning) -> None:
        """Offer the search of a problem no longer; those who take part in it go on."""
        shared = self.family.searches.get(_shared_key(tuning))
        if shared is not None and shared.search is tuning.search:
            self.family.searches.pop(_shared_key(tuning), None)

    def reopen(self, tuning: Tuning) -> None:
        """Search a settled problem again, after its winner has failed or drifted.

        Called with the lock held.
        """
        problem = tuning.problem
        winner = self.settled.get(problem) or self.older.get(problem)
        decision = self.decisions.get(problem)
        if decision is not None:
            self._withdraw_disqualified(decision, tuning.candidates[decision.position])
        if winner is not None and self.grouped and decision is not None:
            earlier = winner.earlier
            passes = earlier if isinstance(earlier, OpenPasses) else tuning.passes
            passes.retire(winner, decision.position)
            tuning.passes = passes
        tuning.decision = None
        tuning.unverified.clear()
        tuning.retries.clear()
        if self.tunings.get(problem) is not tuning:
            self.hold(tuning)
        # Only now: an interrupt must find the winner or the search.
        if winner is not None:
            self._retire(problem, winner)
            self.settled.pop(problem, None)
            self.older.pop(problem, None)
        self.decisions.pop(problem, None)

    def _withdraw_disqualified(self, decision: Decision, chosen: Candidate) -> None:
        """If the chosen alternative was disqualified, leave the decision out of a lock that is
        written, and list it as one that a locked run has not followed."""
        if chosen.disqualified is None:
            return
        problem, lock = problem_text(decision.problem), current_lock()
        for writer in LockWriter.active:
            writer.withdraw(self.name, problem, decision.alternative)
        if lock is not None and decision.source == "locked":
            lock.lose(self.name, problem, decision.alternative, chosen.disqualified)

    def conclude(self, tuning: Tuning) -> None:
        """Settle the problem if its search has a winner. Called with the lock held."""
        problem = tuning.problem
        if self.tunings.get(problem) is not tuning and (
            problem in self.tunings or problem in self.settled or problem in self.older
        ):
            return  # evicted meanwhile; another search has taken its place, and its decision holds
        if tuning.decision is None:
            winner = tuning.winner
            if winner is not None:
                measured = winner != tuning.lone or tuning.search.winner == winner
                measured = measured and bool(tuning.candidates[winner].samples)
                source = getattr(tuning.search, "source", None)
                self.settle(tuning, winner, source or ("measured" if measured else "only"))
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
        """Book one answered call: the stage of its pass, its time, and the choices inside it.

        Called with the lock held.
        """
        clean, whole, total = trial.clean and not trial.waited, True, seconds
        if not 0.0 <= seconds < inf:  # the clock went backwards
            seconds, total, clean = 0.0, 0.0, False
        if begun is not None:
            begun.seconds = total = begun.seconds + seconds
            begun.clean = clean = begun.clean and clean
            whole = tuning.passes.close_stage(begun, stage)
        if tuning.decision is not None:
            if position in tuning.retried and self.decisions.get(tuning.problem) is tuning.decision:
                tuning.retried.clear()
                tuning.former = tuning.decision.position
                self.reopen(tuning)  # it runs again: compare it with the stored times
            else:
                self.conclude(tuning)
            return
        if timed:
            candidate = tuning.candidates[position]
            if trial.children is not None:
                candidate.adopt(trial.children)
            self.journal.add_trial(
                (tuning.problem, candidate.alternative.name, stage, seconds, clean, trial.waited)
            )
            self.costs.took(seconds)
            if whole:
                candidate.calls += 1
                # Trials that met an unsettled choice are in the loss of that choice's selector.
                if clean or (trial.clean and trial.waited):
                    self.costs.counted(tuning, candidate, total, trial.waited)
                if clean:
                    tuning.ignored += tuning.ignores  # before: the search may begin to count
                    tuning.tell(position, total)
        if tuning.asks_ahead and tuning.lone is None:
            tuning.asked = tuning.ask()
            if tuning.asked is not None:  # so there is no winner: most trials need not ask for it
                return
        if tuning.winner is not None:
            self.conclude(tuning)

    def settle(self, tuning: Tuning, position: int, source: str) -> None:
        """Decide for an alternative: write the decision to the store, and publish the winner.

        `source` tells reports where the decision comes from. Called with the lock held.
        """
        winner = tuning.candidates[position]
        evidence = tuple(
            candidate.evidence() for candidate in tuning.candidates if candidate.applies
        )
        decision = Decision(
            *(tuning.problem, winner.alternative.name, position, source, evidence, tuning.history),
            trials=tuning.trials_begun,
        )
        tuning.asked = None
        tuning.calls = tuning.ignored = 0
        tuning.unverified |= self.uncompared(tuning, position)
        tuning.decision, tuning.untold = decision, True
        self.decisions[tuning.problem] = decision
        if source != "only":  # else its evidence was not asked for
            self._remembered.pop(tuning.key or "", None)
        self._tell(tuning)
        self.costs.decided(tuning, decision.seconds)
        if _log.isEnabledFor(logging.INFO):
            _log.info(
                "%s: %s (%s)%s",
                self.where(tuning.problem),
                decision.alternative,
                source,
                decision.gain_text(),
            )
        if tuning.unsaved:
            self.save(tuning)
        for writer in LockWriter.active:
            record = tuning.record(self.name, host(), time.time())
            writer.settled(self.name, problem_text(tuning.problem), decision, record)
        self.publish(tuning)
        self.leave(tuning)

    def uncompared(self, tuning: Tuning, position: int) -> set[int]:
        """Return the stages of an alternative whose results must still be compared."""
        candidate = tuning.candidates[position]
        if self.verifier is None:
            # Another selector may have called it, and compared the result of its own function.
            compares = self._checks and self.family.is_shared and position != tuning.remaining()[0]
            return set(self.stages[position]) - candidate.trusted if compares else set()
        if self.verifier.trusts(candidate.alternative.name):
            return set()
        return set(self.stages[position]) - candidate.trusted

    def publish(self, tuning: Tuning) -> None:
        """Move a settled problem to the hot path, unless its calls must stay on the long way.

        Each step leaves the problem with its search or its winner, whole.
        """
        decision, problem = tuning.decision, tuning.problem
        assert decision is not None
        held = self.tunings.get(problem)
        if held is not tuning and (
            held is not None or problem in self.settled or problem in self.older
        ):
            return  # another search has replaced this one
        self.decisions[problem] = decision
        if tuning.untold:  # an interrupt came between the decision and the journal
            self._tell(tuning)
        if not tuning.unverified and not tuning.retries and not self.watches(tuning):
            if tuning.unsaved:  # an interrupt came between the decision and its record
                self.save(tuning)
            winner = self.new_winner(decision)
            tuning.passes.prune()
            if tuning.passes:
                winner.earlier = tuning.passes
            self.remember(problem, winner)
            self.tunings.pop(problem, None)
        elif held is None:
            self.hold(tuning)  # its calls stay on the long way until they are verified

    def _tell(self, tuning: Tuning) -> None:
        """Write the decision to the journal."""
        decision = tuning.decision
        assert decision is not None
        self.journal.add(DecisionEntry(tuning.problem, decision.alternative, decision.source))
        tuning.untold = False  # last, as in `save`

    def new_winner(self, decision: Decision) -> PythonWinner:
        """Return a winner for the hot path."""
        return Winner(self.functions[decision.position], self.choice.first_sample(decision))

    def watches(self, tuning: Tuning) -> bool:
        """Return whether calls of a settled problem stay on the long way.

        They do if results are compared now and then (`check_every`), and if the winner calls this
        selector again with the same problem: on the hot path that would recurse without end.
        """
        assert tuning.decision is not None
        position = tuning.decision.position
        if self.check_every is not None and position != tuning.remaining()[0]:
            return True
        return tuning.candidates[position].recursive

    # The store

    def recorded(self, key: str | None) -> Record | None:
        """Return what earlier runs know of a problem, given its canonical text.

        Evidence that an earlier bestof has kept under a former version gets the present one. In a
        locked run, what was decided before the alternatives changed does not count.
        """
        record = None
        if key is not None and current_lock() is None:
            record = self._remembered.get(key)
        record = record or self.stored.load(key)
        if record is not None and key is not None:
            self._set_aside(key, record)
        if record is None or {one.version for one in record.evidence}.issubset(self.versions):
            return record
        evidence = []
        for item in record.evidence:
            version = self._versions_met.get((item.alternative, item.version))
            if version is None:
                own = (one for one in self.alternatives if one.name == item.alternative)
                version = next((a.version for a in own if a.has_had(item.version)), item.version)
                self._versions_met[item.alternative, item.version] = version
            evidence.append(replace(item, version=version))
        return replace(record, evidence=tuple(evidence))

    def _set_aside(self, key: str, record: Record) -> None:
        """Keep the evidence of alternatives that this selector does not have at present."""
        others = tuple(one for one in record.evidence if one.alternative not in self.names)
        if others:
            if len(self._others) >= self._max_problems:
                self._others.clear()
            self._others[key] = others

    def _whole(self, record: Record) -> Record:
        """Return a record with the evidence of other alternatives."""
        return replace(record, evidence=(*record.evidence, *self._others.get(record.problem, ())))

    def save(self, tuning: Tuning) -> None:
        """Write what is known of a problem to the store. Called with the lock held."""
        record = tuning.record(self.name, host(), time.time())
        if record is not None:
            self.stored.save(record)
        tuning.unsaved = False  # last: an interrupt before the save must not lose the record

    def _keep(self, tuning: Tuning) -> None:
        """Save the evidence of an unfinished search, unless the store has a decision.

        Samples of the new race cannot be compared with older ones of alternatives not tried yet.
        """
        if tuning.unsaved and not tuning.history and tuning.former is None:
            self.save(tuning)

    def succeed(self, earlier: Knowledge) -> None:
        """Begin with what a selector has learnt before its alternatives changed.

        Each problem is opened again at its next call, with its evidence, as in a new process with a
        store. Called with the lock of `earlier` held.
        """
        records = dict(earlier._remembered)  # of problems that were not called since
        for tuning in list(earlier.tunings.values()):
            earlier._keep(tuning)
            record = tuning.record(self.name, host(), time.time())
            if record is not None:
                records[record.problem] = earlier._whole(record)
        for problem, decision in earlier.decisions.items():
            key = canonical(problem)
            if key is not None and decision.source != "only":
                name = None if decision.is_ordered else decision.alternative
                known = (self.name, key, host(), name, decision.evidence, time.time())
                records[key] = earlier._whole(Record(*known))
        new = set(self.names).difference(earlier.names)
        for key, record in list(records.items())[-self._max_problems :]:
            # A decision without an alternative that comes back with its evidence is void.
            comes_back = any(one.alternative in new for one in record.evidence)
            self._remembered[key] = replace(record, decision=None) if comes_back else record
        self._retired = earlier.savings()
        self.costs.continues(earlier.costs)

    def flush(self) -> None:
        """Save the evidence of unsettled problems, so that the next run continues with it."""
        with self.lock:
            for tuning in self.tunings.values():
                self._keep(tuning)

    def asked_store(self) -> Store | None:
        """Return the store, or None if this selector has met no problem yet.

        Finding the default store may create it.
        """
        return self.stored.find() if self.decisions or self.tunings else None

    def after_fork(self) -> None:
        """In a child process, drop the passes that the parent's threads have begun."""
        self.lock = self.family.renew()
        for tuning in self.tunings.values():
            tuning.passes.clear()

    # Messages

    def tell(self) -> None:
        """Give the warnings that have waited for the lock to be free."""
        warn_of_all(self.notices)

    def where(self, problem: Hashable) -> str:
        """Return the beginning of a message about a problem."""
        return f"BestOf({self.name!r}), problem {problem_text(problem)}"


def _shared_key(tuning: Tuning) -> tuple[Hashable, tuple[bool, ...]]:
    return tuning.problem, tuple(candidate.remains for candidate in tuning.candidates)
