"""What was measured as dicts and lines, ready for JSON and CSV, and back."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO, TypeVar

from bestof.bench.model import ModelTimes, PeerTime
from bestof.bench.model_job import Job
from bestof.bench.model_layers import LayerTimes
from bestof.bench.model_matrix import MatrixRow
from bestof.errors import InvalidArgument

_Result = TypeVar("_Result")

_PEER_COLUMNS = (
    "name",
    "seconds",
    "spread",
    "ratio",
    "low",
    "high",
    "error",
    "settled",
    "prepare_seconds",
    "peak_bytes",
    "prepare_bytes",
    "reason",
)
_MATRIX_COLUMNS = (
    "name",
    "seconds",
    "replaced_seconds",
    "ratio",
    "low",
    "high",
    "settled",
    "trials",
    "error",
    "reason",
)
_JOB_COLUMNS = ("model", "batch", "threads", "train", "size", "narrow", "device")


def to_dict(times: ModelTimes | MatrixRow) -> dict[str, Any]:
    """For JSON, times in seconds."""
    return asdict(times)


def times_from_dict(content: Any) -> ModelTimes:
    """What `to_dict` gave, after a way through JSON. Raises InvalidArgument for anything else."""
    try:
        return ModelTimes(
            Job.from_dict(content["job"]),
            content["best"],
            tuple(PeerTime(**{**peer, "first_seconds": tuple(peer["first_seconds"])}) for peer in content["peers"]),
            tuple(LayerTimes(**layer) for layer in content["layers"]),
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidArgument(
            f"this is not what `bestof bench model --json` printed: {type(error).__name__}: {error}"
        ) from error


def merged(results: Iterable[ModelTimes]) -> tuple[ModelTimes, ...]:
    """The last one of every job, in the order in which jobs came first."""
    kept: dict[Job, ModelTimes] = {}
    for one in results:
        kept[one.job] = one
    return tuple(kept.values())


def row_from_dict(content: Any) -> MatrixRow:
    """What `to_dict` gave of a row of the matrix. Raises InvalidArgument for anything else."""
    try:
        return MatrixRow(**{**content, "job": Job.from_dict(content["job"])})
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidArgument(
            f"this is no row of `bestof bench model --matrix --json`: {type(error).__name__}: {error}"
        ) from error


def read_kept(path: Path) -> tuple[ModelTimes, ...]:
    """What `keep` wrote of models to the file; nothing where there is none. Raises InvalidArgument for any other
    line."""
    return merged(_read_lines(path, times_from_dict))


def read_kept_rows(path: Path) -> tuple[MatrixRow, ...]:
    """Likewise the rows of the matrix."""
    return tuple(_read_lines(path, row_from_dict))


def _read_lines(path: Path, parse: Callable[[Any], _Result]) -> list[_Result]:
    if not path.exists():
        return []
    results = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            results.append(parse(json.loads(line)))
        except ValueError as error:  # InvalidArgument is one
            raise InvalidArgument(
                f"{path}, line {number}: no measurement of this version, or of another table; name another file"
            ) from error
    return results


def keep(path: Path, times: ModelTimes | MatrixRow) -> None:
    """Append one, as a line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(to_dict(times)) + "\n")


def write_csv(results: Sequence[ModelTimes] | Sequence[MatrixRow], stream: TextIO) -> None:
    """A line for every job and peer, times in seconds."""
    matrix = bool(results) and isinstance(results[0], MatrixRow)
    columns = _MATRIX_COLUMNS if matrix else _PEER_COLUMNS
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*_JOB_COLUMNS, "peer", *columns[1:]])
    for result in results:
        for row in (result,) if isinstance(result, MatrixRow) else result.peers:
            writer.writerow([*_job(result.job), *(getattr(row, column) for column in columns)])


def _job(job: Job) -> list[object]:
    size = "" if job.size is None else f"{job.size[0]}x{job.size[1]}"
    return [job.model, job.batch, job.threads, job.train, size, job.narrow, job.device]
