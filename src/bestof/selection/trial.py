"""Trials under way, and how one that runs inside another becomes its child.

A context variable holds the innermost trial of the running thread or task. Inspecting the stack
instead would cost 18 to 109 microseconds a call, and would make parent and child of what merely
shares a stack.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextvars import ContextVar, Token
from typing import Any

# Not empty while settled calls must take the long way: inside any thread's trial (they may be
# somebody's children), or while every selector is switched off, by None in front. A list, because
# append and pop are atomic.
detours: list[object] = []

_ERRORS_KEPT = 16  # a function may catch what the calls inside it raise, and go on for ever


class Trial:
    """One timed call of an alternative. `clean` turns false when an unsettled choice was met inside
    it: its time then contains somebody else's search, and does not count. `children` are the
    choices met, as (selector, problem). `unanswered` are the last errors of calls of the same
    selector inside that no alternative could answer."""

    __slots__ = (
        "children",
        "clean",
        "done",
        "owner",
        "parent",
        "position",
        "problem",
        "unanswered",
    )

    def __init__(
        self, owner: object, problem: Hashable, position: int, parent: Trial | None
    ) -> None:
        self.owner = owner
        self.problem = problem
        self.position = position
        self.parent = parent
        self.clean = True
        # a task that was begun inside a trial may outlive it, and still carry it in its context
        self.done = False
        self.children: set[tuple[str, Hashable]] | None = None
        self.unanswered: tuple[BaseException, ...] = ()

    def meets(self, selector: str, problem: Hashable, *, settled: bool) -> None:
        """Take note of a choice made inside this trial."""
        if not settled:
            self.clean = False
        if self.children is None:
            self.children = set()
        self.children.add((selector, problem))

    def has_above(self, owner: object) -> bool:
        """Whether a selector has a trial here or further out: it may then call itself with the same
        problem."""
        trial: Trial | None = self
        while trial is not None:
            if trial.owner is owner:
                return True
            trial = trial.parent
        return False

    def could_not_answer(self, owner: object, error: BaseException) -> None:
        """Tell the nearest trial of a selector, here or further out, which error ends a call of
        that selector."""
        trial: Trial | None = self
        while trial is not None:
            if trial.owner is owner:
                trial.unanswered = (*trial.unanswered[-_ERRORS_KEPT:], error)
                return
            trial = trial.parent

    def positions_above(self, owner: object, problem: Hashable) -> set[int]:
        """The alternatives of this very problem that are on trial here or further out: a selector
        that recurses into itself must not try those again."""
        positions = set()
        trial: Trial | None = self
        while trial is not None:
            if trial.owner is owner and trial.problem == problem:
                positions.add(trial.position)
            trial = trial.parent
        return positions


current_trial: ContextVar[Trial | None] = ContextVar("bestof_current_trial", default=None)


def innermost_trial() -> Trial | None:
    """The trial that what runs here is a part of; None outside of trials."""
    trial = current_trial.get()
    while trial is not None and trial.done:
        trial = trial.parent
    return trial


def timed_in_python(
    detours: list[object],
    current_trial: ContextVar[Trial | None],
    trial: Trial,
    clock: Callable[[], float],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[float, Any]:
    """What a call of a function took and gave; while it ran, `trial` was the innermost one."""
    token: Token[Trial | None] | None = None
    try:  # what an interrupt finds begun is ended
        token = current_trial.set(trial)
        detours.append(trial)
        started = clock()
        result = function(*args, **kwargs)
        return clock() - started, result
    finally:
        leave_trial(trial, token)


def leave_trial(trial: Trial, token: Token[Trial | None] | None) -> None:
    """The end of a trial, however it came. Without a token it may still be the current one, but it
    is done."""
    trial.done = True
    # No `suppress` here: two of them take 0.8 us, a fifth of a trial.
    try:  # noqa: SIM105
        detours.remove(trial)
    except ValueError:  # begun before a fork, by a task of the parent process
        pass
    if token is None:
        return
    try:  # noqa: SIM105
        current_trial.reset(token)
    except ValueError:  # a coroutine that nobody finished, closed in the context of the collector
        pass


def forget_other_detours() -> None:
    """In a child process: trials of threads that do not exist here would keep every call on the
    long way for ever."""
    mine = []
    trial = current_trial.get()
    while trial is not None:
        mine.append(trial)
        trial = trial.parent
    detours[:] = [detour for detour in detours if detour in mine or not isinstance(detour, Trial)]
