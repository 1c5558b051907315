"""Shapes that never repeat: each one makes PyTorch and oneDNN prepare anew."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from bestof.doctor.finding import Finding
from bestof.doctor.seen import Call, Seen
from bestof.doctor.trap import Trap

_LEAST_CALLS = 10
_LEAST_SHARE = 0.3


class NewShapes(Trap):
    """Compares calls with new shapes with those that repeat one, by the time of an element."""

    name = "shapes that never repeat"
    of_program = True

    def findings(self, seen: Seen) -> Sequence[Finding]:
        calls = [one for one in seen.calls[1:] if one.elements]
        if len(calls) < _LEAST_CALLS:
            return [Finding(self.name, None, None, f"too few calls were seen: {len(calls)}")]
        new, known = ([one for one in calls if one.new is want] for want in (True, False))
        share = len(new) / len(calls)
        told = f"{len(new)} of {len(calls)} calls brought a new shape"
        if share < _LEAST_SHARE:
            return [Finding(self.name, False, None, told)]
        factor = None
        if len(known) >= _LEAST_CALLS:
            factor = _element_seconds(new) / _element_seconds(known)
            told += f"; they took {factor:.2f} times as long, for an element"
        cure = "pad to a few lengths: length = -(-length // 64) * 64; if only memory is short, "
        cure += "ONEDNN_PRIMITIVE_CACHE_CAPACITY=64 in the environment of the process"
        return [Finding(self.name, True, factor, told, cure)]


def _element_seconds(calls: Sequence[Call]) -> float:
    return mean(one.seconds for one in calls) / mean(one.elements for one in calls)
