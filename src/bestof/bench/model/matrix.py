"""Checks that no model is slower with bestof: with and without it in one process, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from statistics import median

from bestof.bench.model.job import Job
from bestof.bench.model.measure import Alone, Effort, Progress, silent
from bestof.bench.model.peers.table import ModelPeer
from bestof.bench.model.process import start_peer
from bestof.bench.model.result import MatrixRow
from bestof.bench.quartiles import Quartiles
from bestof.errors import BenchError


def measure_matrix(
    jobs: Sequence[Job],
    peers: Sequence[ModelPeer],
    effort: Effort,
    *,
    kept: Iterable[MatrixRow] = (),
    keep: Callable[[MatrixRow], object] = lambda _: None,
    alone: Alone = nullcontext,
    progress: Progress = silent,
) -> tuple[MatrixRow, ...]:
    """Measure every job by every peer of bestof that can run it, in the order of jobs and peers.

    `kept` holds rows that need not be measured again; of equal rows the last one counts. `keep` is
    called with every new row that has a time.
    """
    pairs = [(job, peer) for job in jobs for peer in peers if peer.ours and peer.runs(job)]
    known = {(row.job, row.name): row for row in kept}
    rows = []
    for number, (job, peer) in enumerate(pairs):
        row = known.get((job, peer.name))
        if row is None:
            progress(f"{job}: {peer.label}", number, len(pairs))
            try:
                row = _row(job, peer, effort, alone)
                keep(row)
            except BenchError as error:
                row = MatrixRow(job, peer.name, reason=str(error))
        rows.append(row)
    return tuple(rows)


def _row(job: Job, peer: ModelPeer, effort: Effort, alone: Alone) -> MatrixRow:
    with start_peer(job.by(peer.name)) as process:
        process.ask("prepare", patience=effort.patience)
        with alone():
            settled = process.ask(
                "settle", patience=effort.patience + effort.settle, limit=effort.settle, least=0
            )
            pair = process.ask(
                "pair",
                patience=effort.patience,
                rounds=effort.rounds,
                seconds=effort.seconds,
                least=effort.calls,
            )
    allowed = peer.tolerance_on(job.device)
    if not pair["difference"] <= allowed:
        raise BenchError(
            f"wrong by {pair['difference']:.1e} of the results' root mean square "
            f"({allowed:.0e} allowed)"
        )
    ratios = [theirs / own for own, theirs in zip(pair["own"], pair["replaced"], strict=True)]
    quartiles = Quartiles.of(ratios)
    return MatrixRow(
        job,
        peer.name,
        median(pair["own"]),
        median(pair["replaced"]),
        quartiles.middle,
        quartiles.low,
        quartiles.high,
        settled["settled"],
        settled["trials"],
        pair["difference"],
    )
