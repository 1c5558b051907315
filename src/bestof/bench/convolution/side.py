"""One peer of a measurement of convolutions or products, with one number of threads."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bestof.bench.convolution.peer_worker import Prepared
from bestof.bench.peer import Peer
from bestof.errors import BenchError
from bestof.worker.process import WorkerProcess

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_WORKER = "bestof.bench.convolution.peer_worker"


class Side:
    """A process that runs the cases of a peer with a fixed number of threads.

    It ends with the `with` block. Every method raises BenchError with the peer's name if the peer
    fails or its process ends.
    """

    def __init__(self, peer: Peer, threads: int, worker: str = _WORKER) -> None:
        self.name, self.threads = peer.name, threads
        if peer.missing:
            raise BenchError(f"{self.name}: not installed: {', '.join(peer.missing)}")
        self._process = WorkerProcess(worker, peer.name, threads)
        try:
            self.version = str(self._ask("version"))
        except BenchError:
            self.close()
            raise

    def prepare(self, case: DataclassInstance) -> dict[str, Prepared]:
        """Return the runs that the peer has for a case, each called twice; empty if it has none."""
        answer = self._ask("prepare", case=asdict(case))
        return {name: Prepared(**fields) for name, fields in answer.items()}

    def time(self, run: str, seconds: float) -> list[float]:
        """Return the seconds of each call of a prepared run. Calls take about `seconds` in all."""
        return [float(one) for one in self._ask("time", run=run, seconds=seconds)]

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, order: str, **arguments: Any) -> Any:
        try:
            return self._process.ask(order, **arguments)
        except BenchError as error:
            raise BenchError(f"{self.name}: {error}") from error
