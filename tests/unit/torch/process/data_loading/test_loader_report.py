"""The line of a loader says why its setting stays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from bestof.torch.process.data_loading.trial_times import TrialTimes
from bestof.torch.process.data_loading.tuning import Bounds, Tuning

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


def test_a_search_without_time_for_another_setting_says_so() -> None:
    tuning = Tuning.of(DataLoader(Numbers(), 4), Bounds(workers=(0, 1), seconds=0.5))
    own = tuning.ask()
    assert own == tuning.own
    times = TrialTimes(0, 40)
    times.asked, times.got = [float(i) for i in range(3)], [i + 0.9 for i in range(3)]
    tuning.finish(own, times, None)
    assert tuning.ask() is None
    (line, *_) = tuning.report().lines()
    assert line.endswith(": its own trial took all that trials may take")
