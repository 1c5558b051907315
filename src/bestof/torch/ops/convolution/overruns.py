"""Alternatives that took far longer than their estimates, and are not tried on similar layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from math import inf
from typing import Any, NamedTuple

from bestof.selection.state.journal import Entry, TrialEntry
from bestof.selection.state.registry import ranks_agree
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.search_settings import COSTLY

_FACTOR = 10.0  # of the fastest alternative: beyond it, a corrected estimate is hopeless
_REMEMBERED = 4096


class _Rates(NamedTuple):
    """Seconds a unit of the estimates: of an alternative, and of the fastest beside it."""

    own: float
    fastest: float


class Overruns:
    """Corrects the estimates of one pass by trials that took far longer.

    An estimate assumes a kernel of a certain quality. A library may have none for a kernel size,
    and compute by reference code: the weight gradient of 15x15 took 10 to 13 s so, and the plain
    call 0.14 s. Then the ratio of its time to its estimate is about the same on similar layers:
    those with the same kernel size, stride, dilation, kind of groups and dtype. There the
    alternative is not tried if its corrected estimate is above 10 times that of the fastest, and
    more than COSTLY seconds above it.

    `listen` takes the journal of the selector. `is_hopeless` is asked under the selector's lock.
    Each step is one operation on a dictionary, so there is no lock. While ranks agree on what they
    try, nothing is left out, because each rank has times of its own.
    """

    def __init__(self, estimates: Callable[[ConvProblem], Mapping[str, float]]) -> None:
        """estimates: returns those of a problem by the names of alternatives."""
        self._estimates = estimates
        self._fastest: dict[ConvProblem, tuple[float, float]] = {}  # its seconds, and its estimate
        self._rates: dict[Hashable, _Rates] = {}

    def listen(self, entry: Entry) -> None:
        """Take an entry of the journal."""
        if not isinstance(entry, TrialEntry) or not entry.counted:
            return
        problem: Any = entry.problem
        estimate = self._estimates(problem).get(entry.alternative)
        if not estimate:
            return
        fastest = self._fastest.get(problem)
        if fastest is None or entry.seconds < fastest[0]:
            if len(self._fastest) >= _REMEMBERED:
                self._fastest.clear()
            self._fastest[problem] = fastest = entry.seconds, estimate
        key = _kind(problem), entry.alternative
        known = self._rates.get(key)
        own = entry.seconds / estimate
        if known is not None and own < known.own:
            # One late call is no evidence against a later one.
            self._rates[key] = _Rates(own, fastest[0] / fastest[1])
        elif known is None and entry.seconds - fastest[0] >= COSTLY:
            if len(self._rates) >= _REMEMBERED:
                self._rates.clear()
            self._rates[key] = _Rates(own, fastest[0] / fastest[1])

    def is_hopeless(self, name: str, problem: Any) -> bool:
        """Return whether trials of similar layers tell that an alternative is far too slow."""
        rates = self._rates.get((_kind(problem), name))
        if rates is None or ranks_agree():
            return False
        estimates = self._estimates(problem)
        expected = rates.own * estimates.get(name, 0.0)
        others = (estimate for other, estimate in estimates.items() if other != name)
        best = rates.fastest * min(others, default=inf)
        return expected > _FACTOR * best and expected - best >= COSTLY


def _kind(problem: ConvProblem) -> Hashable:
    """Return on what it depends whether a library has a kernel of its own for a layer."""
    channels = problem.weight_shape[1]
    groups = min(problem.groups, 2) + (problem.groups > 1 and channels == 1)
    return (
        *(problem.weight_shape[2:], problem.stride, problem.dilation, groups),
        *(problem.dtype, problem.device),
    )
