"""A step whose alternatives are compared with PyTorch or float64, on the operands that it has."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from torch import Tensor

from bestof.errors import NoAlternative
from bestof.torch.plan.steps.chosen_step import Choice, ChosenStep
from bestof.torch.plan.steps.comparison import Comparison


class ComparedStep(ChosenStep):
    """A step that can say whether what it has just computed is right.

    out: where all alternatives write. added: an operand that may lie there too, and is overwritten
    then. made_up: returns the same step on normal operands, in memory of its own.
    """

    made_up: Callable[[], ComparedStep]

    def __init__(self, choice: Choice, out: Tensor, added: Tensor | None) -> None:
        super().__init__(choice)
        self.out = out
        overwrites = added is not None and added.data_ptr() == out.data_ptr()
        self._overwritten = added if overwrites else None

    @abstractmethod
    def trusts(self, name: str) -> bool:
        """Return whether an alternative is PyTorch's own, which the others are compared with."""

    @abstractmethod
    def compared(self, name: str | None, overwritten: Tensor | None) -> Comparison:
        """Compare the result of the last run; the result stays.

        name: the alternative that has run; None if it is not known. overwritten: the operand that
        the run has overwritten, if it does.
        """

    def overwritten(self) -> Tensor | None:
        """Return a copy of the operand that a run overwrites; None if it overwrites none."""
        return None if self._overwritten is None else self._overwritten.clone()

    def renew(self, overwritten: Tensor | None) -> None:
        """Prepare another run on the same operands, and poison the result of the one before."""
        if self._overwritten is None:
            self.out.fill_(float("nan"))
        elif overwritten is not None:
            self._overwritten.copy_(overwritten)

    def select(self) -> object:
        """Run the step by the alternative that the selector tries next."""
        try:
            return super().select()
        except NoAlternative:  # memory for a comparison is short; or PyTorch's own error tells more
            return self.runner(self.pytorch)()

    @property
    def is_comparable(self) -> bool:
        """Whether the chosen alternative is not PyTorch's own."""
        return self.algorithm is not None and not self.trusts(self.algorithm)

    def complaint(self) -> str | None:
        """Run the chosen alternative; return how its results are wrong, for any operands."""
        name = self.algorithm
        if name is None:  # another call has opened the choice since it was asked
            return None
        overwritten = self.overwritten()
        self.renew(overwritten)
        try:
            self.runner(name)()
            return self.judged(name, overwritten, for_good=True)[0]
        finally:
            self.renew(overwritten)

    def judged(
        self, name: str, overwritten: Tensor | None, for_good: bool = False
    ) -> tuple[str | None, float]:
        """Return how the result of the last run is wrong, in words, and the scale of its error.

        None if it is right. If the values show too little, the alternative runs on normal ones too.
        for_good: whether the answer holds for all values of the problem. Then normal numbers decide
        where NaN or infinity is among the values, or roundings may all go one way.
        """
        found, operands = self.compared(name, overwritten), "the values that reach it"
        wrong = found.complaint(operands)
        if wrong is None and found.shows:
            return None, found.scale
        if wrong is not None and for_good:
            wrong = found.complaint(operands, alike=True) if found.finite else None
        if wrong is not None:
            return wrong, found.scale
        other = self.made_up()
        kept = other.overwritten()
        other.renew(kept)
        other.runner(name)()
        again = other.compared(name, kept)
        wrong = again.complaint("random values")
        if wrong is None and not again.explains:
            wrong = "and float64 differ from PyTorch on random values"
        return wrong, found.scale
