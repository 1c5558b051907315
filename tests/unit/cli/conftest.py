"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest
from bestof_process import Bestof


@pytest.fixture
def bestof(tmp_path: Path) -> Bestof:
    return Bestof(tmp_path)
