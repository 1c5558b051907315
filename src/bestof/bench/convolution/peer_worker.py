"""The process of one convolution peer: `python -m bestof.bench.convolution.peer_worker PEER`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from bestof.bench.convolution.case import Case
from bestof.bench.convolution.peers.table import peer_named
from bestof.bench.convolution.run import Run
from bestof.bench.peer import Peer
from bestof.worker.serve import serve

# A run is called once before the timed calls, unless a call takes this long. Then neither caches
# nor sleeping threads matter.
_LONG = 0.05


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a peer reports about one of its runs (see `Run`). `seconds` is the time of the second
    call."""

    seconds: float
    samples: list[float]
    work: float | None
    scratch_bytes: int | None


class PeerWorker:
    """The peer of this process. Each public method is an order; see `bestof.worker.serve`.

    `case_of` makes a case of the peer from the JSON of an order.
    """

    def __init__(self, peer: Peer, case_of: Callable[[dict[str, Any]], Any]) -> None:
        self._peer, self._case_of = peer.load(), case_of
        self._runs: dict[str, Run] = {}
        self._expected: dict[str, float] = {}

    def version(self) -> str:
        """Return the name and version of what is measured."""
        return str(self._peer.version())

    def prepare(self, case: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Drop the last case. Return the runs for this case, after calling each of them twice."""
        self._runs = {}  # before the new operands take memory
        self._runs = self._peer.prepare(self._case_of(case))
        prepared = {name: _prepared(run) for name, run in self._runs.items()}
        self._expected = {name: one.seconds for name, one in prepared.items()}
        return {name: asdict(one) for name, one in prepared.items()}

    def time(self, run: str, seconds: float) -> list[float]:
        """Return the seconds of each call of a prepared run. Calls take about `seconds` in all."""
        call = self._runs[run].call
        if self._expected[run] < _LONG:
            call()
        times: list[float] = []
        begin = perf_counter()
        while not times or perf_counter() - begin < seconds:
            started = perf_counter()
            call()
            times.append(perf_counter() - started)
        return times


def _prepared(run: Run) -> Prepared:
    run.call()
    started = perf_counter()
    run.call()
    return Prepared(perf_counter() - started, run.samples(), run.work, run.scratch_bytes)


if __name__ == "__main__":
    serve(lambda: PeerWorker(peer_named(sys.argv[1]), Case.from_json))
