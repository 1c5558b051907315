"""Counts are exact under threads, and bounded."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from bestof.torch.ops.search_settings import PATIENCE
from bestof.torch.rows.call_counts import CallCounts


@pytest.fixture
def hasty() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_no_call_is_lost() -> None:
    counts: CallCounts[int] = CallCounts()

    def work() -> None:
        for number in range(20000):
            counts.count(number % 3)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts.totals().values()) == 80000


def test_totals_can_be_read_again() -> None:
    counts: CallCounts[str] = CallCounts()
    counts.count("a")
    assert counts.totals() == {"a": 1}
    counts.count("a")
    counts.count("b")
    assert counts.totals() == counts.totals() == {"a": 2, "b": 1}


def test_rare_keys_are_forgotten_at_the_limit() -> None:
    counts: CallCounts[int] = CallCounts(limit=4)
    for _ in range(PATIENCE + 1):
        counts.count(0)
    for key in range(1, 1000):
        counts.count(key)
        assert len(counts.totals()) <= 4
    assert counts.totals()[0] == PATIENCE + 1


def test_keys_beyond_the_limit_are_not_counted() -> None:
    counts: CallCounts[int] = CallCounts(limit=2)
    for _ in range(PATIENCE + 1):
        for key in (1, 2):
            counts.count(key)
    counts.count(3)
    counts.count(1)
    assert counts.totals() == {1: PATIENCE + 2, 2: PATIENCE + 1}
