"""How long calls of a selector wait for its store. Prints JSON; run as a program, perhaps with a
shim preloaded.

`waits.py FOLDER CALLS`: every call meets a new problem, so that it asks for pins and evidence, and
is the only trial of a race, so that a decision is saved. What a call waits is taken where it waits,
in `Job.wait`: a machine that is busy with other things makes every line of a program slow, and this
one too: `late` is how much later than asked the system wakes a thread that waits for nothing. The
`asked` waits are bounds that the store sets itself: short ones for a moment after a long wait. This
moment is told by a clock that runs during waits only. Otherwise, a call that the system stops for
longer would wait long a second time.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

from bestof import BestOf
from bestof.selection.store import patience
from bestof.selection.store.sqlite import SqliteStore
from bestof.selection.store.worker import Job


class Waits:
    """Adds up, for each call, what was asked of `Job.wait` and what it took."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.took: list[float] = []
        self.seconds = 0.0  # of all waits
        self._wait = Job.wait

    def begin(self) -> None:
        """Begin a call."""
        self.asked.append(0.0)
        self.took.append(0.0)

    def wait(self, job: Job, seconds: float) -> bool:
        """Stand in for Job.wait."""
        begin = time.perf_counter()
        finished = self._wait(job, seconds)
        took = time.perf_counter() - begin
        self.took[-1] += took
        self.asked[-1] += min(seconds, took) if finished else seconds
        self.seconds += took
        return finished


def measure(folder: Path, calls: int) -> dict[str, object]:
    """Return the distribution of waits, in milliseconds."""
    waits = Waits()
    waits.begin()
    Job.wait = lambda job, seconds: waits.wait(job, seconds)  # type: ignore[method-assign]  # spy
    patience.time = SimpleNamespace(monotonic=lambda: waits.seconds)  # type: ignore[attr-defined]
    store = SqliteStore(folder / "decisions.sqlite")
    pairs = [("a", lambda n: n), ("b", lambda n: n + 0)]
    selector = BestOf("waits", pairs, lambda n: n, rounds=1, store=store)
    whole = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for call in range(calls):
            waits.begin()
            begin = time.perf_counter()
            for _ in range(4):  # until it is decided
                selector(call)
            whole.append(time.perf_counter() - begin)
        waits.begin()
        began = time.perf_counter()
        store.close()
        closing = time.perf_counter() - began
    idle = Job(lambda: None, 1.0)
    late = []
    for _ in range(100):
        begin = time.perf_counter()
        waits.wait(idle, 0.001)
        late.append(time.perf_counter() - begin - 0.001)
    return {
        "calls": calls,
        "late": spread(late),
        "asked": spread(waits.asked[1 : calls + 1]),
        "waited": spread(waits.took[1 : calls + 1]),
        "whole": spread(whole),
        "above": sum(asked > 0.005 for asked in waits.asked[1 : calls + 1]),
        "closing": closing,
        "told": [str(one.message) for one in told],
    }


def spread(seconds: list[float]) -> dict[str, float]:
    """Return median, 99th percentile and the largest, in milliseconds."""
    ordered = sorted(seconds)
    places = {"median": 0.5, "99 %": 0.99, "most": 1.0}
    return {
        name: round(1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 4)
        for name, part in places.items()
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
