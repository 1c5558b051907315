"""Stores, lock files and plans with bytes changed at random, in short; `make hostile` does it at
length."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import mutations
import plan_mutations
import pytest
import reader_mutations

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]


@pytest.mark.parametrize(("kind", "count"), [("stores", 100), ("lock_files", 500), ("plans", 60)])
def test_mutated_files_give_a_clear_error_or_a_good_answer(
    kind: str, count: int, tmp_path: Path
) -> None:
    expect_good(getattr(mutations, kind)(tmp_path, count, seed=7), count)


def test_rows_with_other_values_are_left_out_and_rename_nothing(tmp_path: Path) -> None:
    found = mutations.rows(tmp_path, 60, seed=7)
    assert set(found) == {"read", "told"}, found
    assert found.total() == 60


def test_changed_graphs_of_plans_run_no_code_and_never_crash(tmp_path: Path) -> None:
    expect_good(plan_mutations.plan_graphs(tmp_path, 150, seed=7), 150)


def test_changed_reports_profiles_recipes_and_logs_are_read_or_refused(tmp_path: Path) -> None:
    expect_good(reader_mutations.readers(tmp_path, 300, seed=1), 300)


def expect_good(found: Counter[str], count: int) -> None:
    """Assert that all mutations were counted, that none failed, and that some were refused."""
    assert not [what for what in found if what.startswith("FAILED")], found
    assert sum(found.values()) == count
    assert found["refused"] > 0
