"""Measurements in a file, a line each, so that a long table can be measured in parts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from bestof.bench.convolution.result import LayerTimes
from bestof.errors import BenchError


def read_kept(path: Path) -> list[LayerTimes]:
    """What the file holds; nothing where there is none. Raises BenchError for a line that is no measurement."""
    if not path.exists():
        return []
    results = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            results.append(LayerTimes.from_json(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            raise BenchError(
                f"{path}, line {number}: no measurement of this version; name another file"
            ) from error
    return results


def keep(path: Path, result: LayerTimes) -> None:
    """Append one."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")
