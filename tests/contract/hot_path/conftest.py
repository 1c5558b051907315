"""Every test of the hot path runs natively and in Python, and leaves no detour behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from settled_selector import IMPLEMENTATIONS

from bestof.selection.hot_path import PythonHotPath
from bestof.selection.trials.trial import detours


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def kind(request: pytest.FixtureRequest) -> type[PythonHotPath]:
    found = IMPLEMENTATIONS[request.param]
    if found is None:
        pytest.skip("the native extension was not built")
    return found


@pytest.fixture(autouse=True)
def no_detours() -> Iterator[None]:
    yield
    assert not detours
