"""Measurements in a file: cut-off lines, other conditions, and files of somebody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from bestof.bench.kept import Kept
from bestof.errors import BenchError, InvalidArgument


def kept(path: Path, conditions: dict[str, int] | None = None) -> Kept[int]:
    return Kept(path, lambda one: {"n": one}, lambda content: content["n"], '{"n": ', conditions)


@pytest.mark.parametrize("left", range(1, 10))
def test_a_line_that_was_cut_off_is_passed_over_and_replaced(left: int, tmp_path: Path) -> None:
    file = kept(tmp_path / "kept")
    file.add(1)
    file.add(2)
    whole = file.path.read_bytes()
    first, second = whole.splitlines(keepends=True)
    file.path.write_bytes(first + second[:left])
    assert file.read() == ([1, 2] if left == len(second) else [1])
    if left < len(second):
        file.add(2)
    assert file.path.read_bytes() == whole


def test_other_conditions_are_passed_over(tmp_path: Path) -> None:
    one, other = (kept(tmp_path / "kept", {"rounds": rounds}) for rounds in (1, 2))
    one.add(1)
    other.add(2)
    assert (one.read(), other.read()) == ([1], [2])


@pytest.mark.parametrize("text", ["[1, 2]", '{"m": 3}\n', "no json", '{"n": 1}\nx\n'])
def test_a_file_of_somebody_else_is_refused_and_left_as_it_is(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match="no measurement of this version"):
        kept(path).read()
    refusing = Kept(path, dict, lambda content: content["n"], "{", refusal=BenchError)
    with pytest.raises(BenchError, match="line"):
        refusing.read()
    assert path.read_text() == text
