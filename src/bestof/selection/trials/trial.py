"""Running trials, and how a choice inside a trial becomes its child.

A context variable holds the innermost trial of the running thread or task. Inspecting the stack
instead would cost 18 to 109 microseconds a call. It would also relate trials that only share a
stack.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from contextvars import ContextVar, Token
from typing import Any

# While this list is not empty, settled calls take the long way. It holds the trials of all threads,
# because settled calls inside a trial are its children. None in front switches every selector off.
# It is a list, because append and pop are atomic.
detours: list[object] = []

_ERRORS_KEPT = 16  # the most errors that are kept; a function may catch errors inside it for ever


class Trial:
    """One timed call of an alternative.

    `children` are the choices met inside it, as (selector, problem). If one of them was unsettled,
    `clean` is false: the time contains trials of another selector, and does not count. `unanswered`
    holds the last errors of calls of the same selector inside it that no alternative answered.
    `waited` are the seconds for which neighbours had its processors. If there are any, the time
    does not count either. `apart` are the seconds that `set_apart` has taken out of its time.
    """

    __slots__ = (
        "apart",
        "children",
        "clean",
        "done",
        "owner",
        "parent",
        "position",
        "problem",
        "unanswered",
        "waited",
    )

    def __init__(
        self, owner: object, problem: Hashable, position: int, parent: Trial | None
    ) -> None:
        self.owner = owner
        self.problem = problem
        self.position = position
        self.parent = parent
        self.clean = True
        # A task that was begun inside a trial may outlive it, and still has it in its context.
        self.done = False
        self.children: set[tuple[str, Hashable]] | None = None
        self.unanswered: tuple[BaseException, ...] = ()
        self.waited = 0.0
        self.apart = 0.0

    def meets(self, selector: str, problem: Hashable, *, settled: bool) -> None:
        """Note a choice made inside this trial."""
        if not settled:
            self.clean = False
        if self.children is None:
            self.children = set()
        self.children.add((selector, problem))

    def has_above(self, owner: object) -> bool:
        """Return whether this trial, or one around it, is a trial of the given selector."""
        trial: Trial | None = self
        while trial is not None:
            if trial.owner is owner:
                return True
            trial = trial.parent
        return False

    def could_not_answer(self, owner: object, error: BaseException) -> None:
        """Tell the nearest trial of a selector, from here outwards, which error ends its call."""
        trial: Trial | None = self
        while trial is not None:
            if trial.owner is owner:
                trial.unanswered = (*trial.unanswered[-_ERRORS_KEPT:], error)
                return
            trial = trial.parent

    def positions_above(self, owner: object, problem: Hashable) -> set[int]:
        """Return the alternatives of this problem that are on trial, from here outwards.

        A selector that recurses into itself must not try these again.
        """
        positions = set()
        trial: Trial | None = self
        while trial is not None:
            if trial.owner is owner and trial.problem == problem:
                positions.add(trial.position)
            trial = trial.parent
        return positions


current_trial: ContextVar[Trial | None] = ContextVar("bestof_current_trial", default=None)


def innermost_trial() -> Trial | None:
    """Return the innermost trial that the caller runs in; None outside of trials."""
    trial = current_trial.get()
    while trial is not None and trial.done:
        trial = trial.parent
    return trial


def set_apart(seconds: float) -> None:
    """Take seconds out of the time of the trials that the caller runs in.

    They are for work whose result later calls use, such as packing weights that stay the same. A
    problem that many layers share would else pay for the weights of a further layer in each trial.
    """
    trial = innermost_trial()
    while trial is not None:
        trial.apart += seconds
        trial = trial.parent


def timed_in_python(
    detours: list[object],
    current_trial: ContextVar[Trial | None],
    trial: Trial,
    clock: Callable[[], float],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[float, Any]:
    """Call a function as a trial. Return its seconds and its result."""
    token: Token[Trial | None] | None = None
    try:
        try:  # from here on, an interrupt finds a trial that it can end
            token = current_trial.set(trial)
            detours.append(trial)
            started = clock()
            result = function(*args, **kwargs)
            return clock() - started, result
        finally:
            leave_trial(trial, token)
    except BaseException:
        leave_trial(trial, token)  # again, as an interrupt may have come into the first time
        raise


async def timed_later(
    trial: Trial, clock: Callable[[], float], coroutine: Coroutine[Any, Any, Any]
) -> tuple[float, Any]:
    """Await a coroutine as a trial. Return its seconds and its result."""
    token: Token[Trial | None] | None = None
    try:
        try:
            token = current_trial.set(trial)
            detours.append(trial)
            started = clock()
            result = await coroutine
            return clock() - started, result
        finally:
            leave_trial(trial, token)
    except BaseException:
        leave_trial(trial, token)
        raise


def call_inside(
    trial: Trial, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function inside a trial that is not timed, and let other settled calls be."""
    token: Token[Trial | None] | None = None
    try:
        try:
            token = current_trial.set(trial)
            return function(*args, **kwargs)
        finally:
            leave_trial(trial, token)
    except BaseException:
        leave_trial(trial, token)
        raise


def leave_trial(trial: Trial, token: Token[Trial | None] | None) -> None:
    """End a trial; it may have ended.

    Without a token, the trial stays the current one, but is marked as done.
    """
    trial.done = True
    # No `suppress` here: two of them take 0.8 us, a fifth of a trial.
    try:  # noqa: SIM105
        detours.remove(trial)
    except ValueError:  # not there, or begun before a fork, by a task of the parent process
        pass
    if token is None:
        return
    try:  # noqa: SIM105
        current_trial.reset(token)
    except (RuntimeError, ValueError):
        # It was reset before, or an unfinished coroutine is closed in the context of the garbage
        # collector.
        pass


def forget_other_detours() -> None:
    """In a child process, drop the trials of threads of the parent.

    They would keep every call on the long way for ever.
    """
    mine = []
    trial = current_trial.get()
    while trial is not None:
        mine.append(trial)
        trial = trial.parent
    detours[:] = [detour for detour in detours if detour in mine or not isinstance(detour, Trial)]
