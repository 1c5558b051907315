"""What was measured as dicts and lines, ready for JSON and CSV, and back."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO, TypeVar

from bestof.bench.model.job import Job
from bestof.bench.model.measure import Effort
from bestof.bench.model.result import LayerTimes, MatrixRow, ModelTimes, PeerTime
from bestof.errors import InvalidArgument
from bestof.kernels import build

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
# Of a line that is kept: under which key its conditions stand, and what it begins with.
_CONDITIONS = "conditions"
_BEGINNING = '{"job": {'
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
            tuple(
                PeerTime(**{**peer, "first_seconds": tuple(peer["first_seconds"])})
                for peer in content["peers"]
            ),
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


def read_kept(path: Path, effort: Effort) -> tuple[ModelTimes, ...]:
    """What `keep` wrote of models to the file with this effort, and these kernels; nothing where there is none.

    Raises InvalidArgument for any other line; the last one may be cut off, as by a process that was ended.
    """
    return merged(_read_lines(path, effort, times_from_dict))


def read_kept_rows(path: Path, effort: Effort) -> tuple[MatrixRow, ...]:
    """Likewise the rows of the matrix."""
    return tuple(_read_lines(path, effort, row_from_dict))


def _read_lines(path: Path, effort: Effort, parse: Callable[[Any], _Result]) -> list[_Result]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and _is_cut_off(lines[-1]):
        lines.pop()
    results, alike = [], _conditions(effort)
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
            conditions = content.pop(_CONDITIONS, None) if isinstance(content, dict) else None
            result = parse(content)
        except ValueError as error:  # InvalidArgument is one
            raise InvalidArgument(
                f"{path}, line {number}: no measurement of this version, or of another table; name another file"
            ) from error
        if conditions == alike:
            results.append(result)
    return results


def keep(path: Path, effort: Effort, times: ModelTimes | MatrixRow) -> None:
    """Append one, as a line, with what its times depend on; in the place of a line that was cut off."""
    with path.open("a+b") as file:
        file.seek(0)
        lines = file.read().decode().splitlines(keepends=True)
        if lines and _is_cut_off(lines[-1]):
            file.truncate(sum(len(line.encode()) for line in lines[:-1]))
        file.write(
            (json.dumps({**to_dict(times), _CONDITIONS: _conditions(effort)}) + "\n").encode()
        )


def _is_cut_off(line: str) -> bool:
    """Whether it is the beginning of one of ours, and no more: what somebody else wrote is not to be lost."""
    return not line.endswith("\n") and (line.startswith(_BEGINNING) or _BEGINNING.startswith(line))


def _conditions(effort: Effort) -> dict[str, Any]:
    """What times of the same job may not differ by, if they are to stand in one table."""
    return {"rounds": effort.rounds, "seconds": effort.seconds, "kernels": build()}


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
