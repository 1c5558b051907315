"""The policy of PaddlePaddle's three stages: observe, tune during a window of steps, then apply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from bestof.errors import InvalidArgument
from bestof.selection.policies.argument import check_count, check_names
from bestof.selection.policies.policy import OpenSearch, SearchingPolicy
from bestof.selection.policies.race import Race


@dataclass(slots=True)
class _Progress:
    """The current step of the program. Of a window, only this changes.

    `opened`: how many orders to tune now are under way, whatever the step.
    """

    step: int = 0
    missed: int = 0
    opened: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Tunes with `policy` in the steps from `start_step` up to, but not including, `stop_step`.

    Before the window, the first alternative answers, and its times do not count, because the
    program is still warming up. Stored evidence, told before the first ask, counts at any step.
    When the window ends, open searches settle on their best so far, or on their first alternative
    if no sample counted. Problems that are first met after the window settle in the same way,
    unless stored evidence decides them. `missed` counts these.

    `step()` advances by one step; call it at each step of the optimizer. All searches of one window
    share its step, so each program needs its own window. Equality and repr ignore the step.

    Source: PaddlePaddle's kernel auto-tuning, `tuning_range`.

    Raises InvalidArgument if `start_step` is below 0, or if `stop_step` is not above it.
    """

    start_step: int
    stop_step: int
    at_any_time: ClassVar[bool] = False
    policy: SearchingPolicy = field(default_factory=Race)
    _progress: _Progress = field(default_factory=_Progress, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "start_step", check_count("Window", "start_step", self.start_step, 0)
        )
        object.__setattr__(
            self,
            "stop_step",
            check_count("Window", "stop_step", self.stop_step, self.start_step + 1),
        )
        if isinstance(self.policy, Window):
            raise InvalidArgument(
                f"Window: policy: expected a policy other than a window, got {self.policy!r}"
            )

    def start(self, alternatives: Sequence[str]) -> WindowSearch:
        """Begin the search for one problem, at whatever step the program is."""
        check_names("Window", alternatives)
        return WindowSearch(
            self, self._progress, self.policy.start(alternatives), len(alternatives)
        )

    def around(self, policy: SearchingPolicy) -> Window:
        """Return a window of the same steps, at the same step, that tunes with another policy."""
        other = Window(self.start_step, self.stop_step, policy)
        object.__setattr__(other, "_progress", self._progress)
        return other

    @property
    def handicaps(self) -> tuple[tuple[str, float], ...]:
        """The seconds that the policy inside adds to the trials of alternatives."""
        found: tuple[tuple[str, float], ...] = getattr(self.policy, "handicaps", ())
        return found

    def step(self) -> None:
        """Count one finished step of the program."""
        self._progress.step += 1

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Tune inside a `with` block, whatever the step."""
        self._progress.opened += 1
        try:
            yield
        finally:
            self._progress.opened -= 1

    def is_before(self) -> bool:
        """Return whether the window has not begun."""
        return self._progress.opened == 0 and self._progress.step < self.start_step

    def is_over(self) -> bool:
        """Return whether the window has ended."""
        return self._progress.opened == 0 and self._progress.step >= self.stop_step

    @property
    def steps(self) -> int:
        """The number of finished steps."""
        return self._progress.step

    @property
    def missed(self) -> int:
        """The number of problems that were first met after the window and not decided by stored
        evidence.

        A problem is counted when it settles.
        """
        return self._progress.missed


class WindowSearch:
    """The search of `Window`. It depends on what was told and dropped, and on the window's step."""

    __slots__ = ("_asked", "_inner", "_late", "_live", "_progress", "_window")

    def __init__(
        self, window: Window, progress: _Progress, inner: OpenSearch, alternatives: int
    ) -> None:
        self._window = window
        self._progress = progress
        self._inner = inner
        self._live = list(range(alternatives))
        self._late = window.is_over()
        self._asked = False

    def ask(self) -> int | None:
        """Return the first alternative before the window, the inner policy's inside, then None."""
        self._asked = True
        if not self._live or self.winner is not None:
            return None
        return self._live[0] if self._window.is_before() else self._inner.ask()

    def tell(self, position: int, seconds: float) -> None:
        """Take a time inside the window, or stored evidence. Ignore times from before the
        window."""
        if not self.ignores:
            self._inner.tell(position, seconds)

    @property
    def ignores(self) -> bool:
        """Whether times that are told at present do not count."""
        return self._asked and (self._window.is_before() or self._window.is_over())

    def drop(self, position: int) -> None:
        """Take an alternative out for good."""
        self._inner.drop(position)
        self._live = [other for other in self._live if other != position]

    @property
    def winner(self) -> int | None:
        """The inner policy's decision from the window on, or the best so far after the window."""
        if self._window.is_before() or not self._live:
            return None
        decided = self._inner.winner
        if decided is not None or not self._window.is_over():
            return decided
        if self._late:
            self._late = False
            self._progress.missed += 1
        return self.best

    @property
    def cut_off(self) -> bool:
        """Whether the window ended before the inner policy had decided."""
        return self._inner.winner is None

    @property
    def source(self) -> str | None:
        """Where a decision comes from: "window" if the window ended before its policy decided."""
        return "window" if self._window.is_over() and self.cut_off else None

    @property
    def best(self) -> int | None:
        """The best so far, or the first if no sample counted; None if every alternative was
        dropped."""
        best = self._inner.best
        return best if best is not None or not self._live else self._live[0]
