"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_model_fakes import asked, matrix_asked
from bestof_process import Bestof

__all__ = ["asked", "bestof", "matrix_asked"]


@pytest.fixture
def bestof(tmp_path: Path) -> Bestof:
    return Bestof(tmp_path)
