"""Keeps measurements in a file, one per line, so that a long table can be measured in parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from bestof.errors import BestofError, InvalidArgument
from bestof.kernels import build
from bestof.selection.identity.host import host

if sys.platform != "win32":
    import fcntl

_Result = TypeVar("_Result")
_CONDITIONS = "conditions"


def circumstances() -> dict[str, str]:
    """Return what all times depend on: the machine, PyTorch's version and the kernels' build."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "none"
    return {"host": host(), "torch": torch, "kernels": build()}


@dataclass(frozen=True, slots=True)
class Kept(Generic[_Result]):
    """A file of measurements.

    `to_json` and `from_json` turn a result into a dict and back. `from_json` raises ValueError,
    TypeError or KeyError for another dict. Every line begins with `beginning`. `conditions` are
    what the times depend on beside the result itself; lines with other conditions are skipped. A
    line with other content raises `refusal`.
    """

    path: Path
    to_json: Callable[[_Result], dict[str, Any]]
    from_json: Callable[[Any], _Result]
    beginning: str
    conditions: Mapping[str, Any] | None = None
    refusal: type[BestofError] = InvalidArgument

    def read(self) -> list[_Result]:
        """Return the results of these conditions. Without a file there are none.

        The last line may be cut off, for example because the process was killed. It is then
        skipped.
        """
        lines = self._lines() if self.path.exists() else []
        return [result for conditions, result in lines if conditions == self.conditions]

    def read_all(self) -> list[_Result]:
        """Return the results of any conditions. Raises OSError if the file cannot be read."""
        return [result for _, result in self._lines()]

    def _lines(self) -> list[tuple[Any, _Result]]:
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        if lines and self._is_cut_off(lines[-1]):
            lines.pop()
        results = []
        for number, line in enumerate(lines, 1):
            try:
                content = json.loads(line)
                conditions = content.pop(_CONDITIONS, None) if isinstance(content, dict) else None
                results.append((conditions, self.from_json(content)))
            except (ValueError, TypeError, KeyError) as error:
                raise self.refusal(
                    f"{self.path}, line {number}: no measurement of this version, or of another "
                    "table; give another path"
                ) from error
        return results

    def add(self, result: _Result) -> None:
        """Append a result. It replaces a line that was cut off."""
        content = self.to_json(result)
        if self.conditions is not None:
            content = {**content, _CONDITIONS: self.conditions}
        with self.path.open("a+b") as file:
            _lock(file)
            file.seek(0)
            lines = file.read().decode().splitlines(keepends=True)
            if lines and self._is_cut_off(lines[-1]):
                file.truncate(sum(len(line.encode()) for line in lines[:-1]))
            file.write((json.dumps(content) + "\n").encode())
            file.flush()

    def _is_cut_off(self, line: str) -> bool:
        """Return whether the line is the beginning of a line of this file, not of another
        program's."""
        ours = line.startswith(self.beginning) or self.beginning.startswith(line)
        return ours and not line.endswith("\n")


def _lock(file: BinaryIO) -> None:
    """Wait for other processes that add to the file. Closing the file ends the lock."""
    if sys.platform != "win32":
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
