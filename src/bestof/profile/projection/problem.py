"""One distinct problem of a profiled step, with its times in the program and alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bestof.profile.projection.measured import Measured


@dataclass(frozen=True, slots=True)
class Problem:
    """One distinct problem of a step: `calls` of them took `seconds` in all, in `modules`.

    `reason` says why it was not replayed. `roofline` is the least seconds of a call by the peaks,
    or None without peaks.
    """

    key: str
    primitive: str
    direction: str
    implementation: str
    problem: str
    calls: int
    seconds: float
    modules: tuple[str, ...]
    measured: tuple[Measured, ...] = ()
    roofline: float | None = None
    reason: str = ""

    def ceiling(self, kinds: Sequence[str], cold: bool) -> Measured | None:
        """Return the fastest way of the given kinds."""
        own = [one for one in self.measured if one.kind in kinds]
        return min(own, key=lambda one: one.seconds(cold), default=None)

    @property
    def coldness(self) -> float:
        """The place of the observed calls between hot (0) and cold (1) runs of the logged call.

        It is 1 if these runs differ by nothing, or if the logged call was not replayed.
        """
        same = self.ceiling(("same",), cold=True)
        if same is None or same.seconds(cold=True) <= same.hot:
            return 1.0
        place = (self.seconds / self.calls - same.hot) / (same.seconds(cold=True) - same.hot)
        return min(1.0, max(0.0, place))

    def expected(self, kinds: Sequence[str]) -> float | None:
        """Return the seconds of the fastest way, as cold as the observed calls were."""
        own = [one.between(self.coldness) for one in self.measured if one.kind in kinds]
        return min(own, default=None)

    @property
    def same_implementation(self) -> bool:
        """Whether the replay of the logged call ran the same implementation as the line."""
        own = self.ceiling(("same",), cold=False)
        return own is not None and self.implementation.split(":", 1)[-1] in own.name
