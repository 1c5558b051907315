"""What selectors ask for a search that all ranks share."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, cast

import torch
import torch.distributed

from bestof.selection.identity.problem import canonical
from bestof.selection.policies.policy import Policy, searches_at_any_time
from bestof.selection.state.registry import AgreeingSelector
from bestof.torch.process.ranks.agreed_search import AgreedPolicy
from bestof.torch.process.ranks.courier import Courier, KeyValueStore
from bestof.torch.process.ranks.problem_log import ProblemLog
from bestof.torch.process.steps import count_steps, steps

PREFIX = "bestof/ranks/3"
"""The number is that of the protocol: ranks of another protocol have a log of their own."""

_log = logging.getLogger("bestof")

Group = tuple[object, Callable[[], KeyValueStore]]

MANY = 4096
"""Problems and names that may be in memory at least before some leave it."""

_NEW = 256  # the last problems, which their selectors may not have in memory yet


class _Known(NamedTuple):
    """A problem of this rank, as long as its selector has it in memory."""

    name: str  # of the selector and the problem, without a number
    selector: weakref.ref[AgreeingSelector]
    problem: Hashable
    log: ProblemLog  # so that it stays

    @property
    def is_remembered(self) -> bool:
        """Whether the selector is there, and has the problem in memory."""
        selector = self.selector()
        return selector is not None and selector.remembers(self.problem)


class _Numbers:
    """The selectors that have met a problem of one name.

    met: how many there were so far. A number is never given twice while this is in memory.
    """

    __slots__ = ("met", "selectors")

    def __init__(self) -> None:
        self.met = 0
        self.selectors: list[tuple[int, weakref.ref[AgreeingSelector]]] = []

    @property
    def may_begin_anew(self) -> bool:
        """Whether the next question gets the same number if this was forgotten."""
        return self.met == 1 and any(one() is not None for _, one in self.selectors)


class Agreement:
    """Gives every problem of every selector its log, while a process group of several ranks is
    initialized.

    A problem is known on all ranks by the name of its selector, its canonical text, and how many
    selectors of that name had met it before.

    group: returns the group of the ranks and what gives its store, or None. step: returns the
    optimizer step. background: whether a thread looks at the log; else `look` does.
    """

    def __init__(
        self,
        group: Callable[[], Group | None] | None = None,
        step: Callable[[], int] = steps,
        *,
        background: bool = True,
    ) -> None:
        self._find_group = _default_group if group is None else group
        self._step = step
        self._background = background
        self._process = os.getpid()
        self._group: object = None  # that the courier was made for
        self._courier: Courier | None = None
        self._lock = threading.Lock()
        self._numbers: dict[str, _Numbers] = {}  # by the name of a problem, the last met behind
        self._problems: dict[str, _Known] = {}
        self._many = MANY  # problems before the next sweep
        if hasattr(os, "register_at_fork"):
            itself = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _forked(itself))

    @property
    def has_ranks(self) -> bool:
        """Whether a process group of several ranks is initialized, and this process is in it."""
        return self._process == os.getpid() and self._find_group() is not None

    def policy(
        self, selector: AgreeingSelector, problem: Hashable, policy: Policy, reopens: bool = False
    ) -> Policy:
        """Return a policy that follows the log of all ranks, or `policy` where ranks need not
        agree.

        reopens: this rank withdraws the decision that all ranks have taken.
        """
        if not searches_at_any_time(policy) or self._process != os.getpid():
            return policy
        text = canonical(problem)
        if text is None:
            return policy
        with self._lock:
            courier = self._current()
            if courier is None:
                return policy
            if len(self._problems) >= self._many or len(self._numbers) >= 2 * self._many:
                self._sweep()
            key = self._key(selector, text)
            log = courier.log(key)
            name = f"{selector.name}/{text}"
            self._problems[key] = _Known(name, weakref.ref(selector), problem, log)
        if self._background:
            courier.start()
        return AgreedPolicy(policy, log, self._step, reopens)

    def look(self) -> None:
        """Exchange what there is with the log, in this thread; raise what the store raises."""
        if self._courier is not None:
            self._courier.look()

    def close(self) -> None:
        """Let every rank decide for itself from now on."""
        if self._courier is not None:
            self._courier.close()
        self._courier = self._group = None

    def _key(self, selector: AgreeingSelector, text: str) -> str:
        """Return the key of a problem of this selector, which is the same on all ranks.

        Selectors are numbered as they come. A number is not given twice: when a selector that is
        gone leaves memory depends on the garbage collector, which runs on each rank by itself.
        """
        name = f"{selector.name}/{text}"
        found = self._numbers.pop(name, None) or _Numbers()
        self._numbers[name] = found
        found.selectors = [pair for pair in found.selectors if pair[1]() is not None]
        for number, one in found.selectors:
            if one() is selector:
                return f"{selector.name}/{number}/{text}"
        number, found.met = found.met, found.met + 1
        found.selectors.append((number, weakref.ref(selector)))
        return f"{selector.name}/{number}/{text}"

    def _sweep(self) -> None:
        """Forget the problems that their selectors have forgotten, and the logs of these.

        A selector bounds its memory, and so this is bounded too. Ranks that meet a problem again
        begin its log anew. Of the names whose next number would be another one without these, the
        last `MANY` stay.
        """
        problems, first_new = list(self._problems.items()), len(self._problems) - _NEW
        self._problems = {
            key: one
            for place, (key, one) in enumerate(problems)
            if place >= first_new or one.is_remembered
        }
        used = {one.name for one in self._problems.values()}
        others = [
            name
            for name, one in self._numbers.items()
            if name not in used and not one.may_begin_anew
        ]
        kept = used.union(others[-MANY:])
        self._numbers = {name: one for name, one in self._numbers.items() if name in kept}
        self._many = max(MANY, 2 * len(self._problems))

    def _current(self) -> Courier | None:
        found = self._find_group()
        if found is None:
            return None
        group, store = found
        if self._courier is None or self._group is not group:
            self.close()
            self._group = group
            self._courier = Courier(
                store(), self._step, self._reopened, lambda: self._is_present(group)
            )
        return None if self._courier.broken else self._courier

    def _is_present(self, group: object) -> bool:
        """Return whether a group was not destroyed since. Its store may then be gone."""
        found = self._find_group()
        return found is not None and found[0] is group

    def _reopened(self, key: str) -> None:
        """Search a problem again here too, because a rank has reopened it."""
        with self._lock:
            known = self._problems.get(key)
        live = None if known is None else known.selector()
        if known is None or live is None:
            return
        try:
            # False if it is not settled here: then its search reads the entry itself.
            live.race_again(known.problem)
        except Exception as error:  # a warning or a listener that raises must not end the thread
            _log.warning("%s: not searched again: %s: %s", key, type(error).__name__, error)


def _default_group() -> Group | None:
    """Return the default process group if it has several ranks."""
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    if distributed.get_world_size() < 2:
        return None
    count_steps()
    return distributed.group.WORLD, _store


def _store() -> KeyValueStore:
    """Return the store of the default process group, under a prefix of our own.

    Not a clone of it: that connects anew, and tries for a minute or more where rank 0 is gone.
    """
    from torch.distributed import distributed_c10d  # noqa: PLC0415  not in every build of torch

    store: Any = distributed_c10d.PrefixStore(PREFIX, distributed_c10d._get_default_store())
    return cast("KeyValueStore", store)


def _forked(itself: weakref.ref[Agreement]) -> None:
    """In a child process, whose courier's thread is gone, decide alone."""
    agreement = itself()
    if agreement is not None and agreement._courier is not None:
        agreement._courier.broken = True
