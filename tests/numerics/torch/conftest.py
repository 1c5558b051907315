"""The alternatives for PyTorch run with the instruction set that is found; each of ours is forced
in the tests of the kernels themselves."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def isa() -> None:
    """Takes the place of the fixture of the kernels' tests."""
