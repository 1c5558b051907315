"""The line of a loader says why its setting stays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from bestof.torch.data_loading.trial_times import TrialTimes
from bestof.torch.data_loading.tuning import Bounds, Tuning

sys.path.insert(0, str(Path(__file__).parent))

from loaders import Numbers


@pytest.mark.parametrize(
    ("workers", "told"),
    [((0, 0), "no other setting is allowed"), ((0, 1), "no other setting worked")],
)
def test_a_search_with_no_faster_setting_says_why(workers: tuple[int, int], told: str) -> None:
    tuning = Tuning.of(DataLoader(Numbers(), 4), Bounds(workers=workers))
    tuning.climb.tell(1.0)
    while (setting := tuning.ask()) is not None:
        tuning.fail(setting, TrialTimes(setting.workers, 40), OSError("no worker starts"))
    (line, *_) = tuning.report().lines()
    assert line.startswith("Numbers: left at no workers")
    assert line.endswith(f": {told}")
