"""The attributes of the original BestOf, for programs written for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from math import isnan, nan
from typing import Any

from bestof.entries import entries
from bestof.selection.state import registry
from bestof.selection.state.decision import Decision
from bestof.selection.state.knowledge import Knowledge


class PaperInterface:
    """The attributes of the original BestOf. Each is computed from what the selector knows.

    A problem without a decision has the value that the original gave it.
    """

    _knowledge: Knowledge

    @property
    def stages(self) -> int:
        """The number of functions of each alternative."""
        return len(self._knowledge.functions[0])

    @property
    def best_idx(self) -> dict[Hashable, int]:
        """The position of the chosen alternative by problem; -1 without a decision."""
        return defaultdict(lambda: -1, ((p, d.position) for p, d in _decided(self._knowledge)))

    @property
    def best_name(self) -> dict[Hashable, str]:
        """The name of the chosen alternative by problem; "None" without a decision."""
        return defaultdict(
            lambda: "None", ((p, d.alternative) for p, d in _decided(self._knowledge))
        )

    @property
    def best_method(self) -> dict[Hashable, Any]:
        """The chosen function by problem; None without a decision, and in a selector of groups."""
        known = self._knowledge
        found = [] if known.grouped else _decided(known)
        return defaultdict(lambda: None, ((p, known.functions[d.position][0]) for p, d in found))

    @property
    def best_pipeline(self) -> dict[Hashable, Any]:
        """The list of chosen functions by problem; None without a decision, and without groups."""
        known = self._knowledge
        found = _decided(known) if known.grouped else []
        return defaultdict(lambda: None, ((p, list(known.functions[d.position])) for p, d in found))

    def medians(self) -> dict[Hashable, list[float]]:
        """Return the median seconds of each alternative, in list order, by problem.

        An alternative without a sample has NaN.
        """
        known = self._knowledge
        with known.lock:
            evidence = {
                p: tuple(c.evidence() for c in t.candidates) for p, t in known.tunings.items()
            }
            evidence.update((problem, d.evidence) for problem, d in known.decisions.items())
        found = {}
        for problem, listed in evidence.items():
            seconds = {one.alternative: one.seconds for one in listed}
            times = [seconds.get(name) for name in known.names]
            found[problem] = [nan if took is None else took for took in times]
        return found

    def speedups(self) -> dict[Hashable, float]:
        """Return how many times faster the chosen alternative is than the slowest one.

        The result has the problems whose chosen alternative was measured.
        """
        measured, found = self.medians(), {}
        for problem, decision in _decided(self._knowledge):
            times = [took for took in measured.get(problem, ()) if not isnan(took)]
            if times and decision.seconds:
                found[problem] = max(times) / decision.seconds
        return found

    @classmethod
    def use_always_the_first_alternative(
        cls,
        value: bool = True,
        update: bool = False,  # noqa: ARG003  the original has this argument
    ) -> None:
        """Make every selector of the process call its first alternative, without any trial.

        If `value` is false, selectors choose again. `update` has no effect: every selector follows
        at once.
        """
        registry.use_first_only(value)

    @classmethod
    def use_the_best_alternative(cls) -> None:
        """Make selectors choose again. Their decisions are kept."""
        registry.use_first_only(False)


def _decided(known: Knowledge) -> list[tuple[Hashable, Decision]]:
    with known.lock:
        return entries(known.decisions)
