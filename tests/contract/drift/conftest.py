"""No test of drift leaves a trial open."""

from __future__ import annotations

from typing import Any

import pytest

from bestof.selection.trials.trial import current_trial, detours


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Any:
    yield
    assert detours == []
    assert current_trial.get() is None
