"""Every test runs once for each instruction set of the processor; scratch is poisoned and
guarded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from instruction_set import ISAS, forced


@pytest.fixture(autouse=True, params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from forced(request.param)
