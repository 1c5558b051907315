"""bfloat16 and float16 that the processor emulates."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch

from bestof.doctor.finding import Finding
from bestof.doctor.one_thread import one_thread
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap

_SIDE = 384
_SLOWER = 1.1


class HalfTypes(Trap):
    """Times a product of each half type against one of float32, on one thread."""

    name = "emulated half types"

    def findings(self, seen: Seen) -> Sequence[Finding]:
        with one_thread():
            single = _seconds(torch.float32)
            factors = {one: _seconds(one) / single for one in (torch.bfloat16, torch.float16)}
        told = f"products of {_SIDE} x {_SIDE} take " + " and ".join(
            f"{factor:.2g} times as long in {_word(one)}" for one, factor in factors.items()
        )
        told += " as in float32"
        used = [one for one in factors if str(one) in seen.dtypes]
        worst = max((factors[one] for one in used), default=None)
        if not seen.dtypes:
            told = f"the types of the program were not seen; {told}"
            return [Finding(self.name, None, None, told)]
        if worst is None:
            return [Finding(self.name, False, None, f"neither type was computed with; {told}")]
        caught = worst > _SLOWER
        cure = "compute in float32: model.float(), and no autocast on this processor"
        return [Finding(self.name, caught, worst, told, cure if caught else "", "products")]


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _seconds(dtype: torch.dtype) -> float:
    """Return the seconds of the fastest of three products."""
    operand = torch.ones(_SIDE, _SIDE, dtype=dtype)
    times = []
    for _ in range(4):
        began = perf_counter()
        torch.mm(operand, operand)
        times.append(perf_counter() - began)
    return min(times[1:])
