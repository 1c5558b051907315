"""A check that knows the operation: it compares results by the call that they answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison of one result shows.

    answer: what the caller gets.
    wrong: in what way the alternative's result is wrong; None if it is right.
    reference_wrong: in what way the first alternative's result is wrong, if it is.
    tells: whether the comparison shows that the alternative is right or wrong. If it does not, the
        next result is compared as well.
    """

    answer: Any
    wrong: str | None = None
    reference_wrong: str | None = None
    tells: bool = True


class Verifier(ABC):
    """Compares the first result of each alternative with that of the first one.

    It is given to a selector as `check`. A function of (expected, got) sees two results only. A
    verifier also sees the alternative, with the error that it promises, and the arguments. So it
    can say which of two results is wrong. It computes the expected result itself, before the
    alternative runs: an alternative may change its arguments.

    No alternative becomes the winner of a problem on the hot path before its result was compared,
    whether trials, the store, a neighbour or an order chose it. `trusts` names the exceptions.
    """

    @abstractmethod
    def trusts(self, alternative: str) -> bool:
        """Return whether results of an alternative need no comparison."""

    def wait(self, stage: int, args: tuple[Any, ...]) -> None:  # noqa: B027  # most have no device
        """Wait for what the program has begun on a device before this call.

        The comparison would wait for this as well, but it is no part of what the comparison costs.
        Called only if times come from a Timer.
        """

    @abstractmethod
    def expect(self, stage: int, args: tuple[Any, ...]) -> Any:
        """Return what `judge` needs: the expected result, before the alternative runs.

        If nothing can be compared at present, return a Verdict with the answer: the alternative
        then does not run. Raises what the first alternative raises; the program gets that error.
        """

    @abstractmethod
    def judge(
        self, alternative: str, stage: int, args: tuple[Any, ...], expected: Any, got: Any
    ) -> Verdict:
        """Return the verdict on what an alternative returned for these arguments."""

    @abstractmethod
    def put_back(self, expected: Any) -> None:
        """Put changed arguments back, after the alternative raised."""

    def expect_of_trusted(self, stage: int, args: tuple[Any, ...]) -> Any:  # noqa: ARG002  # most compare none
        """Return what `judge` needs for the first trial of a trusted alternative, if it is cheap.

        None if the trial is not compared. No order and no stored decision waits for this.
        """
        return None
