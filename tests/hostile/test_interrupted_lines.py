"""A program is interrupted at every line of the engine, once in each run."""

from __future__ import annotations

import pytest
from interrupted import Interrupt, TimeLimit
from interrupted_selector import SCENARIOS, faults

# Those in which an interrupt once did harm, and the shortest, are tried at every line.
_WHOLE = ("rounds", "stored", "stored group", "pinned")

# This scenario runs 47,000 lines.
_EVERY = {"evicting": 997}


@pytest.mark.parametrize("kind", [Interrupt, TimeLimit])
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_interrupt_at_any_line_leaves_a_selector_whole(
    name: str, kind: type[BaseException]
) -> None:
    every = 1 if name in _WHOLE and kind is Interrupt else _EVERY.get(name, 17)
    tried, found = faults(name, kind=kind, every=every)
    assert tried > 20
    assert found == []
