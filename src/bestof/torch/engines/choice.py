"""What was measured of the engines of a model for some inputs, and the one that was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bestof.selection.duration import duration
from bestof.torch.engines.table import PLAN

_MARGIN = 1.02
"""The plan, if it was measured, is given up only for an engine that is faster by more."""


@dataclass(frozen=True, slots=True)
class EngineResult:
    """What was measured of one engine.

    samples: the least seconds of a call in each round. error: the largest difference from the
    model in float64, over the root mean square; None if it comes from the store. reason: why the
    engine is out, or None. build: the seconds until it was ready.
    """

    engine: str
    version: str
    samples: tuple[float, ...] = ()
    error: float | None = None
    reason: str | None = None
    build: float | None = None

    @property
    def seconds(self) -> float | None:
        """The least of all rounds; None for an engine that is out."""
        return min(self.samples) if self.samples and self.reason is None else None


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engines for some inputs, the fastest first; those that are out at the end.

    inputs: in words. stored: whether an earlier process has measured.
    """

    inputs: str
    threads: int
    results: tuple[EngineResult, ...]
    stored: bool = False

    @property
    def ranking(self) -> tuple[str, ...]:
        """The names of the engines that answer rightly, the chosen one first."""
        timed = {one.engine: one.seconds for one in self.results if one.seconds is not None}
        names = sorted(timed, key=lambda name: timed[name])
        if names and PLAN in timed and timed[PLAN] <= _MARGIN * timed[names[0]]:
            names.insert(0, names.pop(names.index(PLAN)))
        return tuple(names)

    @property
    def engine(self) -> str:
        """The name of the chosen engine: the plan if none answers rightly."""
        return next(iter(self.ranking), PLAN)

    def without(self, engine: str, reason: str) -> EngineChoice:
        """Return the choice among the other engines."""
        return replace(
            self,
            results=tuple(
                replace(one, reason=reason) if one.engine == engine else one for one in self.results
            ),
        )

    def lines(self) -> Iterator[str]:
        """Yield plain text: a line an engine."""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        origin = ", measured by an earlier process" if self.stored else ""
        yield f"{self.inputs}, {threads}: {self.engine}{origin}"
        width = max((len(one.engine) for one in self.results), default=0)
        ranking = self.ranking
        order = {name: place for place, name in enumerate(ranking)}
        for one in sorted(self.results, key=lambda one: order.get(one.engine, len(order))):
            if one.seconds is None:
                yield f"  {one.engine:<{width}}  out: {one.reason or 'not measured'}"
                continue
            error = "" if one.error is None else f"  error {one.error:.1e}"
            build = "" if one.build is None else f"  ready in {one.build:.1f} s"
            yield f"  {one.engine:<{width}}  {duration(one.seconds):>8}{error}{build}"
