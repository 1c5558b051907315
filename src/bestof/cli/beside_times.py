"""`bestof run --beside`: the times of steps by PyTorch alone, for the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bestof.bench.quartiles import Quartiles
from bestof.selection.duration import duration
from bestof.view.quantity import plural
from bestof_autoload import tell


class BesideTimes:
    """Has one of `every` steps run by PyTorch alone, once the program has imported PyTorch."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._steps: Any = None

    def start(self) -> None:
        """Begin. A program that cannot be compared runs on."""
        try:
            from bestof.torch.steps_beside import StepsBeside  # noqa: PLC0415 - torch is imported

            self._steps = StepsBeside(self._every)
            self._steps.start()
        except Exception as error:  # the program must run even if bestof fails
            tell(f"bestof: no steps are compared: {error}")

    def lines(self) -> list[str]:
        """Return the line that compares both kinds of steps."""
        found = None if self._steps is None else self._steps.result()
        if found is None or not (found.alone or found.tuned):
            return ["  steps: none were counted; --beside needs calls of an optimizer's step"]
        ratio = found.ratio
        return [
            f"  steps: {_times(found.alone)} by PyTorch alone, {_times(found.tuned)} tuned"
            + (
                ": too few to compare"
                if ratio is None
                else f"; side by side, {ratio:.2f} times as fast"
            )
        ]


def _times(seconds: Sequence[float]) -> str:
    """Return the median, the quartiles and the number of some times."""
    if not seconds:
        return "none"
    found = Quartiles.of(seconds)
    spread = f"{duration(found.low)} to {duration(found.high)}"
    return f"{duration(found.middle)} ({spread}; {plural(len(seconds), 'step')})"
