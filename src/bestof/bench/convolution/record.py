"""Results of convolutions in a file, one a line."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from bestof.bench.convolution.result import LayerTimes
from bestof.bench.kept import Kept, circumstances
from bestof.errors import BenchError


def kept_in(path: Path, rounds: int, seconds: float) -> Kept[LayerTimes]:
    """Return the file of results at this path; a line of another kind raises BenchError.

    Results of another effort, and those of other circumstances, are passed over.
    """
    conditions = {**circumstances(), "rounds": rounds, "seconds": seconds}
    return Kept(path, asdict, LayerTimes.from_json, '{"layer": "', conditions, refusal=BenchError)
