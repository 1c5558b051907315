"""What selectors ask for a search that all ranks share."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, cast

import torch
import torch.distributed

from bestof.selection.identity.problem import canonical
from bestof.selection.policies.policy import Policy, searches_at_any_time
from bestof.selection.state.registry import AgreeingSelector
from bestof.torch.process.ranks.agreed_search import AgreedPolicy
from bestof.torch.process.ranks.courier import Courier, KeyValueStore
from bestof.torch.process.steps import count_steps, steps

PREFIX = "bestof/ranks/3"
"""The number is that of the protocol: ranks of another protocol have a log of their own."""

_log = logging.getLogger("bestof")

Group = tuple[object, Callable[[], KeyValueStore]]


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
        self._met: dict[str, int] = {}  # how many selectors of a name have met a problem so far
        self._selectors: dict[str, list[tuple[int, weakref.ref[AgreeingSelector]]]] = {}
        self._problems: dict[str, tuple[weakref.ref[AgreeingSelector], Hashable]] = {}
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
            key = self._key(selector, text)
            self._problems[key] = weakref.ref(selector), problem
        log = courier.log(key)
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

        Selectors are numbered as they come. A number is never given twice: when a selector that
        is gone leaves memory depends on the garbage collector, which runs on each rank by itself.
        """
        name = f"{selector.name}/{text}"
        known = self._selectors.setdefault(name, [])
        known[:] = [(number, one) for number, one in known if one() is not None]
        for number, one in known:
            if one() is selector:
                return f"{selector.name}/{number}/{text}"
        number = self._met.get(name, 0)
        self._met[name] = number + 1
        known.append((number, weakref.ref(selector)))
        return f"{selector.name}/{number}/{text}"

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
            selector, problem = self._problems.get(key, (lambda: None, None))
        live = selector()
        if live is None:
            return
        try:
            # False if it is not settled here: then its search reads the entry itself.
            live.race_again(problem)
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
