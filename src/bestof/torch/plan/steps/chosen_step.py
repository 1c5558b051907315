"""A step that several implementations can run, and the choice among them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from bestof.selection import BestOf
from bestof.selection.notice import warn
from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Packed

Runner = Callable[[], object]


class Choice:
    """The alternative that runs one step of a program: the only place where it is kept.

    A choice starts open. It is settled once: by the selector's decision, by a plan file, by a limit
    of memory, or by verification, which replaces a wrong alternative. All bindings of a program
    share its choices, and bind to the alternative when they next look.

    is_ordered: whether it holds for every number of threads. earlier: what was chosen before the
    choice was opened again.
    """

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        self._algorithm: str | None = None
        self.earlier: str | None = None
        self.is_ordered = False

    @property
    def algorithm(self) -> str | None:
        """The name of the alternative; None while the choice is open."""
        return self._algorithm

    @property
    def recorded(self) -> str | None:
        """The decision as a plan file holds it, and as `settle` takes it; None while it is open."""
        return self.algorithm

    def can_run(self, name: str) -> bool:
        """Return whether an alternative of this name computes the problem at its accuracy."""
        return bool(self.problem.can_run(name))

    @property
    def parts(self) -> Sequence[Choice]:
        """The choices inside the alternatives of this one."""
        return ()

    def reopen(self) -> bool:
        """Open the choice again, unless it was ordered; return whether it is open."""
        if not self.is_ordered:
            self.earlier = self._algorithm or self.earlier
            self._algorithm = None
        return self.algorithm is None

    def take(self, decision: str) -> None:
        """Take the selector's decision, which holds for the number of threads in use now."""
        self._algorithm = decision

    def settle(self, name: str) -> None:
        """Order an alternative, in place of an earlier one too, for every number of threads."""
        self._algorithm, self.is_ordered = name, True


class ChosenStep(ABC):
    """An operation at its place in memory, and the choice of what runs it.

    While the choice is open, each call goes through a selector, which tries the alternatives. Once
    it is settled, `run` is the chosen alternative itself: a call costs nothing beyond it.

    pytorch: the name of PyTorch's own operator among the alternatives.
    """

    pytorch: ClassVar[str]

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    @property
    def problem(self) -> Any:
        """What is chosen for."""
        return self.choice.problem

    @property
    def algorithm(self) -> str | None:
        """The name of the chosen alternative; None while the choice is open."""
        return self.choice.algorithm

    @property
    def run(self) -> Runner:
        """The function that runs the step."""
        name = self.algorithm
        return self.select if name is None else self.runner(name)

    @abstractmethod
    def runner(self, name: str) -> Runner:
        """Return the function that runs the step by one alternative."""

    @property
    @abstractmethod
    def selector(self) -> BestOf:
        """The selector of the alternatives."""

    def select(self) -> object:
        """Run the step by the alternative that the selector tries next."""
        return self.selector(self)

    @property
    def asked(self) -> Any:
        """The problem that the selector is asked for."""
        return self.problem

    def decision(self) -> str | None:
        """Return the selector's decision; None if it has none yet."""
        return self.selector.chosen(self.asked)

    @property
    @abstractmethod
    def is_comparable(self) -> bool:
        """Whether the chosen alternative can be compared with PyTorch's own, and is another."""

    @abstractmethod
    def complaint(self) -> str | None:
        """Run the chosen alternative; return how its results are wrong, in words.

        None if nothing is wrong, or nothing is chosen. The operands stay for another run.
        """

    def give_up(self, wrong: str) -> None:
        """Let PyTorch run the step from now on: its alternative has gone wrong, as these words say.

        The selector, and so the store, give it up for the problem, if it is their choice too.
        """
        name, is_theirs = self.algorithm, self.selector.chosen(self.asked) == self.algorithm
        self.settle(self.pytorch)
        if not (is_theirs and self.selector.give_up(self.asked, f"wrong result: {wrong}")):
            warn(
                f"{self.problem}: {name} {wrong}; PyTorch's own kernel takes its place in the plan"
            )

    @property
    def reads(self) -> tuple[tuple[FrozenWeights, tuple[Packed, ...]], ...]:
        """The weights that the step reads, and the layouts of each that it holds."""
        return ()

    @property
    def running(self) -> tuple[ChosenStep, ...]:
        """The steps that it runs in their turn, if it only calls others."""
        return ()

    @property
    def flops(self) -> int:
        """The additions and multiplications of direct convolutions; 0 for other steps."""
        return 0

    @property
    def promised_error(self) -> float | None:
        """The promised rms error, relative to the rms of the sums; None without a promise."""
        return None

    @property
    def raced_bytes(self) -> int:
        """About the bytes of the weights that are packed for a race."""
        return 0

    def prepare(self) -> None:  # noqa: B027  # most have nothing to prepare
        """Prepare all alternatives for a race: packing weights is no part of a call's time."""

    def settle(self, name: str) -> None:
        """Choose an alternative, and free what only the others need."""
        self.choice.settle(name)
        self.learn()

    def close(self) -> bool:
        """End another race of a choice that was made before; return whether this has closed it.

        The selector's decision holds if it has one, else the earlier one, unless it failed since.
        """
        if self.algorithm is not None:
            return False
        earlier = self.choice.earlier
        if self.decision() is None and earlier is not None and not self._has_failed(earlier):
            self.choice.take(earlier)
        self.learn()
        return self.algorithm is not None

    def _has_failed(self, name: str) -> bool:
        rows = self.selector.explain(self).alternatives
        return any(one.name == name and one.status == "disqualified" for one in rows)

    def learn(self) -> bool:
        """Take the selector's decision if there is one; return whether the choice is settled."""
        if self.algorithm is None:
            decision = self.decision()
            if decision is None:
                return False
            self.choice.take(decision)
        return True
