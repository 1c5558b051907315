"""Converts results of models to dicts and lines, for JSON and CSV, and back."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO, TypeVar

from bestof.bench.kept import Kept, circumstances
from bestof.bench.model.job import Job
from bestof.bench.model.measure import Effort
from bestof.bench.model.result import LayerTimes, MatrixRow, ModelTimes, PeerTime
from bestof.errors import InvalidArgument

_Result = TypeVar("_Result")

_BEGINNING = '{"job": {'  # of each kept line

_PEER_COLUMNS = (
    "name",
    "seconds",
    "least",
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
_JOB_COLUMNS = (
    "model",
    "batch",
    "threads",
    "train",
    "size",
    "narrow",
    "device",
    "dtype",
    "beside",
    "plans",
)


def to_dict(times: Any) -> dict[str, Any]:
    """Return a dict for JSON, times in seconds."""
    return asdict(times)


def times_from_dict(content: Any) -> ModelTimes:
    """Return the result that `to_dict` wrote, also after a round trip through JSON.

    Raises InvalidArgument for any other content.
    """
    try:
        return ModelTimes(
            Job.from_dict(content["job"]),
            content["best"],
            tuple(
                PeerTime(**{**peer, "first_seconds": tuple(peer["first_seconds"])})
                for peer in content["peers"]
            ),
            tuple(LayerTimes(**layer) for layer in content["layers"]),
            content.get("machine", ""),
            _number_or_none(content.get("peak")),
            _number_or_none(content.get("bound")),
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidArgument(
            f"this is not what `bestof bench model --json` printed: {type(error).__name__}: {error}"
        ) from error


def _number_or_none(value: Any) -> float | None:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    raise TypeError(f"expected a number; got {value!r}")


def merged(results: Iterable[ModelTimes]) -> tuple[ModelTimes, ...]:
    """Return the last result of every job. Jobs keep the order in which they first appeared."""
    kept: dict[Job, ModelTimes] = {}
    for one in results:
        kept[one.job] = one
    return tuple(kept.values())


def row_from_dict(content: Any) -> MatrixRow:
    """Return the row of the matrix that `to_dict` wrote. Raises InvalidArgument for other
    content.
    """
    try:
        return MatrixRow(**{**content, "job": Job.from_dict(content["job"])})
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidArgument(
            "this is no row of `bestof bench model --matrix --json`: "
            f"{type(error).__name__}: {error}"
        ) from error


def read_results(path: Path) -> list[ModelTimes]:
    """Return the results of a file that `--json` printed, or `--keep` wrote with any effort.

    Raises OSError if the file cannot be read, ValueError or InvalidArgument for other content.
    """
    text = path.read_text(encoding="utf-8")
    if text.startswith(_BEGINNING):
        return Kept(path, to_dict, times_from_dict, _BEGINNING).read_all()
    content = json.loads(text)
    if not isinstance(content, list):
        raise InvalidArgument(f"{path}: this is not what `bestof bench model --json` printed")
    try:
        return [times_from_dict(one) for one in content]
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error


def read_kept(path: Path, effort: Effort) -> tuple[ModelTimes, ...]:
    """Return the results that `keep` wrote with this effort in these circumstances.

    The oldest comes first. Without a file there are none. Raises InvalidArgument for a line of
    another kind. A last line that was cut off is skipped.
    """
    return tuple(_kept(path, effort, times_from_dict).read())


def read_kept_rows(path: Path, effort: Effort) -> tuple[MatrixRow, ...]:
    """Return the kept rows of the matrix in the same way."""
    return tuple(_kept(path, effort, row_from_dict).read())


def keep(path: Path, effort: Effort, times: ModelTimes | MatrixRow) -> None:
    """Append a result as a line, with the conditions that its times depend on."""
    kept: Kept[Any] = _kept(path, effort, times_from_dict)
    kept.add(times)


def _kept(path: Path, effort: Effort, parse: Callable[[Any], _Result]) -> Kept[_Result]:
    """Return the file. A table must not mix times of different efforts or circumstances."""
    conditions = {**circumstances(), "rounds": effort.rounds, "seconds": effort.seconds}
    return Kept(path, to_dict, parse, _BEGINNING, conditions)


def write_csv(results: Sequence[ModelTimes] | Sequence[MatrixRow], stream: TextIO) -> None:
    """Write a line for every job and peer, times in seconds."""
    matrix = bool(results) and isinstance(results[0], MatrixRow)
    columns = _MATRIX_COLUMNS if matrix else _PEER_COLUMNS
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*_JOB_COLUMNS, "peer", *columns[1:]])
    for result in results:
        for row in (result,) if isinstance(result, MatrixRow) else result.peers:
            writer.writerow([*_job(result.job), *(getattr(row, column) for column in columns)])


def _job(job: Job) -> list[object]:
    size = "" if job.size is None else f"{job.size[0]}x{job.size[1]}"
    what = [job.model, job.batch, job.threads, job.train, size]
    return [*what, job.narrow, job.device, job.dtype, job.beside, job.plans]
