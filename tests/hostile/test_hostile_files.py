"""Stores, lock files and plans with bytes changed at random, in short; `make hostile` does it at
length."""

from __future__ import annotations

import os
from pathlib import Path

import mutations
import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.parametrize(("kind", "count"), [("stores", 100), ("lock_files", 500), ("plans", 60)])
def test_mutated_files_give_a_clear_error_or_a_good_answer(
    kind: str, count: int, tmp_path: Path
) -> None:
    found = getattr(mutations, kind)(tmp_path, count, seed=7)
    assert not [what for what in found if what.startswith("FAILED")], found
    assert sum(found.values()) == count
    assert found["refused"] > 0
