"""The agreement: selectors get from it a search that all ranks share."""

from __future__ import annotations

import os
import weakref
from collections.abc import Hashable
from typing import Any, cast

import torch
import torch.distributed

from bestof.selection.policies import Fixed, Window
from bestof.selection.policy import Policy, SearchingPolicy
from bestof.selection.problem import canonical
from bestof.selection.registry import AgreeingSelector
from bestof.torch.ranks.agreed_search import AgreedPolicy
from bestof.torch.ranks.courier import Courier
from bestof.torch.ranks.steps import count_steps, steps

PREFIX = "bestof/ranks"


class Agreement:
    """Gives every problem of every selector its script, if a process group of several ranks exists.

    All ranks know a problem by the name of its selector, its canonical text, and the number of
    selectors of that name that had met it before. `races` counts how often it was reopened.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._group: Any = None  # the process group of the courier
        self._courier: Courier | None = None
        # the number of selectors that have met a problem, by its name
        self._met: dict[str, int] = {}
        self._selectors: dict[str, list[tuple[int, weakref.ref[AgreeingSelector]]]] = {}
        self._problems: dict[str, tuple[weakref.ref[AgreeingSelector], Hashable]] = {}
        self._races: dict[str, int] = {}  # the last race that this rank has begun
        self._latest: dict[str, int] = {}  # the last race that any rank has begun

    def policy(self, selector: AgreeingSelector, problem: Hashable, policy: Policy) -> Policy:
        """Return a policy that follows the script, or `policy` if ranks need not agree."""
        if isinstance(policy, (Fixed, Window)) or self._process != os.getpid():
            return policy
        text, courier = canonical(problem), self._current()
        if courier is None or text is None:
            return policy
        key = self._key(selector, text)
        again = key in self._races
        race = max(self._latest.get(key, 0), self._races.get(key, -1) + 1)
        self._races[key] = race
        self._problems[key] = weakref.ref(selector), problem
        if again and race > self._latest.get(key, 0):
            self._latest[key] = race
            courier.announce(key, race)
        script = courier.converse(f"{key}/{race}")
        return AgreedPolicy(cast("SearchingPolicy", policy), script, steps)

    def close(self) -> None:
        """Let every rank decide alone from now on."""
        if self._courier is not None:
            self._courier.close()
        self._courier = self._group = None

    def _key(self, selector: AgreeingSelector, text: str) -> str:
        """Return the key of a problem of this selector. It is the same on all ranks.

        Selectors are numbered in the order in which they appear, and a number is never used again.
        The garbage collector decides when a dropped selector is freed, and it runs at different
        times on each rank.
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
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        if distributed.get_world_size() < 2:
            return None
        group = distributed.group.WORLD
        if self._courier is None or self._group is not group:
            self.close()
            self._races.clear()
            self._latest.clear()
            self._group = group
            count_steps()
            self._courier = Courier(_store(), steps, self._reopened)
        return None if self._courier.broken else self._courier

    def _reopened(self, key: str, race: int) -> None:
        """Note that a rank has reopened a problem, and reopen it here too."""
        if race <= self._latest.get(key, 0):
            return
        self._latest[key] = race
        selector, problem = self._problems.get(key, (lambda: None, None))
        live = selector()
        if live is not None and self._races[key] < race:
            live.race_again(problem)


def _store() -> Any:
    """Return the store of the default process group, under bestof's prefix.

    A clone of the store would connect again. If rank 0 has gone, it would try this for a minute or
    more.
    """
    from torch.distributed import distributed_c10d  # noqa: PLC0415  not in every build of torch

    return distributed_c10d.PrefixStore(PREFIX, distributed_c10d._get_default_store())
