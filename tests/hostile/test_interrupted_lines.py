"""A program is interrupted at every line of the engine, once in each run."""

from __future__ import annotations

import pytest
from interrupted import Interrupt, TimeLimit
from interrupted_selector import SCENARIOS, faults

# Those in which an interrupt once did harm, and the shortest, are tried at every line.
_WHOLE = ("rounds", "stored", "stored group", "pinned")


@pytest.mark.parametrize("kind", [Interrupt, TimeLimit])
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_interrupt_at_any_line_leaves_a_selector_whole(
    name: str, kind: type[BaseException]
) -> None:
    whole = name in _WHOLE and kind is Interrupt
    # The hot path has told that a sample is under way before the first line of `sampled`, where an
    # interrupt ends the watch for drift of this problem. So a scenario of drift begins behind it.
    first = 2 if name.startswith("drift") else 1
    tried, found = faults(name, kind=kind, every=1 if whole else 17, first=first)
    assert tried > 40
    assert found == []
