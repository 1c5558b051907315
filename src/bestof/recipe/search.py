"""Tries each part against what stands, and keeps what makes the step faster.

Two processes run the script at the same time, one as it stands and one with the candidate. They
take turns: one waits while the other runs. So both meet the same state of the machine, and a pair
of turns gives one ratio. At last, all kept settings together are compared with the untuned script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from bestof.recipe.contestant import OutOfTime, ScriptFailed
from bestof.recipe.parts import Facts, Part, candidate
from bestof.recipe.recipe import TOTAL, Comparison, Recipe
from bestof.recipe.settings import Settings
from bestof.selection.policies.paired import LEAST_PAIRS, MOST_PAIRS, judge


@dataclass(frozen=True, slots=True)
class Effort:
    """What a comparison may take.

    settling: the share of a part's time that the candidate may take to choose its kernels. pairs:
    an unclear candidate is not kept after so many.
    """

    settling: float
    pairs: int


EFFORT = Effort(settling=0.4, pairs=MOST_PAIRS)

FLOOR_EFFORT = Effort(settling=0.7, pairs=3 * MOST_PAIRS)
"""A recipe promises at least what `bt.enable()` gives. With a third of the pairs, some of them
while a small Transformer still chose its kernels, a gain of 1.17 was not confirmed."""

CHOOSING = frozenset({"kernels", "products", "attention"})
"""The settings that do nothing in a script with nothing to choose."""

LOOKS = LEAST_PAIRS
"""So many more turns a candidate has to find something to choose: a layer may be called later than
in the first steps. Pairs would take twice the time."""

MOST_SHARES = 4
"""A part may take a quarter of the time that is left, or more at the end. Equal shares of a short
time are too short for each part: every candidate first chooses its kernels. The first part may take
all of it, because a recipe promises at least what `bt.enable()` gives."""


class Turns(Protocol):
    """A run of the script with some settings; see `Contestant`."""

    settings: Settings
    facts: Facts | None
    trials: int
    chosen: list[str]

    def turn(self, deadline: float) -> float:
        """Run for a turn. Return the seconds of a step."""

    def close(self) -> None:
        """End the run."""


class Search:
    """Fills a recipe. `save` is called after each pair, so that an interruption loses nothing.

    `tell` gets the line of each comparison with a pair or a decision, also of an earlier search.

    deadline: in seconds of `clock`.
    """

    def __init__(
        self,
        recipe: Recipe,
        make: Callable[[Settings], Turns],
        *,
        deadline: float,
        save: Callable[[], object],
        tell: Callable[[str], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._recipe = recipe
        self._make = make
        self._deadline = deadline
        self._save = save
        self._tell = tell
        self._clock = clock
        self._standing: Turns | None = None
        self._reached: list[Comparison] = []

    def run(self, parts: Sequence[Part]) -> None:
        """Try all parts. Raises ScriptFailed if the script fails, or has no steps, as it stands.

        It is raised, too, if no candidate could be compared; the recipe then keeps nothing.
        Without enough time, the recipe stays incomplete, and the next search continues it.
        """
        recipe = self._recipe
        recipe.complete = False
        try:
            facts = self._facts()
            recipe.settings = Settings()  # the comparisons that are known set it again
            for number, part in enumerate(parts):
                left = len(parts) - number + 1  # the total takes one too
                share = 1 if part.floor else min(MOST_SHARES, left)
                for values in part.values(facts):
                    made = candidate(recipe.settings, values)
                    if made is not None:
                        until = self._clock() + (self._deadline - self._clock()) / share
                        effort = FLOOR_EFFORT if part.floor else EFFORT
                        self._try(part.name, recipe.settings, made, until, effort)
            if all(one.kept is not None for one in self._reached):
                self._check_measured()
                self._look_again([part for part in parts if part.floor], facts)
            if all(one.kept is not None for one in self._reached):
                recipe.complete = self._total()
            self._forget_superseded()  # after the total, whose pairs may be of an earlier search
        except OutOfTime:
            pass
        finally:
            self._close()
            self._save()

    def _look_again(self, parts: Sequence[Part], facts: Facts) -> None:
        """Compare once more what a recipe promises, if pairs have rejected it.

        The rest of the search has given the kernels time to be chosen anew. MobileNetV2's `enable`
        was once rejected at 0.97, in six pairs that agreed, and was 1.1 times as fast afterwards.
        """
        rejected = {one.part for one in self._reached if one.kept is False and one.ratios}
        for part in parts:
            for values in part.values(facts) if part.name in rejected else ():
                made = candidate(self._recipe.settings, values)
                if made is not None:
                    self._try(f"{part.name} again", self._recipe.settings, made, self._deadline)

    def _forget_superseded(self) -> None:
        """Drop comparisons that this search did not come to, if they are undecided or made anew.

        An earlier search made them with other standing settings, or an earlier bestof did.
        """
        comparisons, reached = self._recipe.comparisons, {id(one) for one in self._reached}
        anew = {one.part for one in self._reached}
        comparisons[:] = [
            one
            for one in comparisons
            if id(one) in reached or (one.kept is not None and one.part not in anew)
        ]

    def _check_measured(self) -> None:
        """Raise ScriptFailed if every candidate failed before a pair was measured."""
        if self._reached and not any(one.ratios for one in self._reached):
            reason = self._reached[0].why
            self._recipe.comparisons.clear()
            raise ScriptFailed(f"no setting could be compared with the script as it is: {reason}")

    def _facts(self) -> Facts:
        standing = self._stand(Settings())
        standing.turn(self._deadline)
        assert standing.facts is not None
        return standing.facts

    def _total(self) -> bool:
        """Compare everything with the untuned script. Return whether that is decided.

        Without time for it, the settings stay: each was confirmed faster than what stood before. If
        they are not faster together, the first one is compared once more. Another program beside a
        small Transformer once made one thread look 10 times faster, and `enable` was lost by it.
        """
        recipe, kept = self._recipe, [one for one in self._recipe.comparisons if one.kept]
        if len(kept) < 2:
            return True  # nothing was kept, or its comparison was against the untuned script
        found = self._try(TOTAL, Settings(), recipe.settings, self._deadline)
        if found.kept is False:
            recipe.settings = kept[0].candidate
            again = f"{kept[0].part} again"
            found = self._try(again, Settings(), recipe.settings, self._deadline, FLOOR_EFFORT)
            if found.kept is False:
                recipe.settings = Settings()
        return found.kept is not None

    def _try(
        self, part: str, standing: Settings, made: Settings, until: float, effort: Effort = EFFORT
    ) -> Comparison:
        """Compare, and take the candidate if it is confirmed."""
        comparison = self._known(part, standing, made)
        self._reached.append(comparison)
        if comparison.kept is None:
            comparison.why = ""
            try:
                self._compare(comparison, until, effort)
            except OutOfTime:
                pairs = len(comparison.ratios)
                plural = "" if pairs == 1 else "s"
                when = f"after {pairs} pair{plural}" if pairs else "before its first pair"
                comparison.why = f"the time was up {when}"
            self._save()
        # The last lines of the recipe name those without a pair together.
        if comparison.kept is not None or comparison.ratios:
            self._tell(comparison.line())
        if comparison.kept:
            self._recipe.settings = made
        return comparison

    def _known(self, part: str, standing: Settings, made: Settings) -> Comparison:
        for one in self._recipe.comparisons:
            if (one.part, one.standing, one.candidate) == (part, standing, made):
                return one
        self._recipe.comparisons.append(Comparison(part, standing, made))
        return self._recipe.comparisons[-1]

    def _compare(self, comparison: Comparison, until: float, effort: Effort) -> None:
        before = self._stand(comparison.standing)
        after = self._make(comparison.candidate)
        settled = self._clock() + effort.settling * (until - self._clock())
        try:
            if self._settle(after, settled):
                why = self._without_effect(before, after)
                comparison.kept, comparison.why = False if why else None, why
            while comparison.kept is None:
                self._check_time(until)
                trials = after.trials
                ratio = self._pair(before, after, until, len(comparison.ratios) % 2 == 0)
                if trials != after.trials and self._clock() < settled:
                    continue  # a layer that is called later has begun to choose
                comparison.ratios.append(ratio)
                comparison.kept = judge(comparison.ratios, effort.pairs)
                self._save()
        except _CandidateFailed as error:
            comparison.kept, comparison.why = False, str(error)
        finally:
            if comparison.kept:
                self._close()
                self._standing = after
            else:
                after.close()

    def _without_effect(self, before: Turns, after: Turns) -> str:
        """Return why the candidate changes nothing, or an empty text if it may."""
        changed = after.settings.differences(before.settings)
        assert after.facts is not None
        if "threads" in changed and after.facts.threads != after.settings.threads:
            return "the script sets its threads itself"
        if CHOOSING.issuperset(changed) and self._has_nothing(before, after):
            return "the step has nothing of it to choose"
        return ""

    def _has_nothing(self, before: Turns, after: Turns) -> bool:
        """Return whether both choose for the same operations.

        The candidate has LOOKS turns to show the contrary, even beyond the time of its part. If
        they ended with it, a script of long steps would leave each such part undecided.
        """
        if before.facts is None:  # it has not run yet
            before.turn(self._deadline)
        for _ in range(LOOKS):
            if before.chosen != after.chosen:
                return False
            self._check_time(self._deadline)
            _turn(after, self._deadline)
        return before.chosen == after.chosen

    def _check_time(self, until: float) -> None:
        if self._clock() >= until:
            raise OutOfTime("the time is up")

    def _pair(self, before: Turns, after: Turns, until: float, standing_first: bool) -> float:
        """Let both run for a turn. Their order changes, so that a drift favours neither."""
        first = before.turn(until) if standing_first else 0.0
        second = _turn(after, until)
        return (first if standing_first else before.turn(until)) / second

    def _settle(self, after: Turns, until: float) -> bool:
        """Run until the candidate tries nothing more, for a turn, or until its time is up.

        Return whether there was time for a turn.
        """
        trials = -1
        while trials != after.trials and self._clock() < until:
            trials = after.trials
            _turn(after, max(until, self._deadline))
        return trials >= 0

    def _stand(self, settings: Settings) -> Turns:
        if self._standing is None or self._standing.settings != settings:
            self._close()
            self._standing = self._make(settings)
        return self._standing

    def _close(self) -> None:
        standing, self._standing = self._standing, None
        if standing is not None:
            standing.close()


def _turn(after: Turns, deadline: float) -> float:
    """Let the candidate run for a turn."""
    try:
        return after.turn(deadline)
    except ScriptFailed as error:
        raise _CandidateFailed(str(error)) from error


class _CandidateFailed(Exception):
    """The run with the candidate failed."""
