"""Fixtures of the tests of the selection engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_program import Program

from bestof.selection import BestOf, use_policy, use_store
from bestof.selection.trials.trial import current_trial, detours


@pytest.fixture
def program() -> Program:
    return Program()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No test may leave a trial open: every selector of the process would stay on the long way."""
    use_store(None)
    yield
    BestOf.use_the_best_alternative()
    use_policy(None)
    assert detours == []
    assert current_trial.get() is None
