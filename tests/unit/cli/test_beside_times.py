"""Times of steps beside PyTorch, where the comparison cannot begin."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from bestof.cli.beside_times import BesideTimes
from bestof.torch import steps_beside


def _closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [lambda: None, _closed])
def test_a_failure_that_cannot_be_told_leaves_the_import_of_torch_whole(
    stream: Callable[[], io.StringIO | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(every: int) -> None:
        raise RuntimeError(f"no steps of {every}")

    monkeypatch.setattr(steps_beside, "StepsBeside", fail)
    monkeypatch.setattr(sys, "stderr", stream())
    times = BesideTimes(10)
    times.start()
    assert "none were counted" in times.lines()[0]
