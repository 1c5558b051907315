"""The measurement of transpositions, on small arrays."""

from __future__ import annotations

import json
from itertools import count

import numpy
import pytest

from bestof.bench import transpose
from bestof.cli import bench, bench_transpose
from bestof.errors import InvalidArgument
from bestof.kernels import transpose_algorithms


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transpose, "ACTIVATIONS", ((3, 5), (16, 4)))


def test_every_algorithm_and_numpy_on_every_array() -> None:
    ticks = count()
    rows = transpose.measure_transpose(2, rounds=3, seconds=1.0, clock=lambda: float(next(ticks)))
    names = [*transpose_algorithms(), "numpy"]
    shapes = [
        ((2, 3, 5, 5), "to NHWC"),
        ((2, 5, 5, 3), "to NCHW"),
        ((2, 16, 4, 4), "to NHWC"),
        ((2, 4, 4, 16), "to NCHW"),
    ]
    assert [(row.shape, row.turn, row.algorithm) for row in rows] == [
        (*shape, name) for shape in shapes for name in names
    ]
    # Every call takes one tick of the clock, a copy as well.
    assert {(row.seconds, row.of_copy, row.spread, row.of_numpy) for row in rows} == {
        (1.0, 1.0, 0.0, 1.0)
    }
    assert rows[0].rate == 8.0 * 2 * 3 * 25


def test_what_is_timed_transposes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = transpose.kernels.transpose

    def spy(
        x: numpy.ndarray, axes: tuple[int, ...], *, out: numpy.ndarray, algorithm: str = "blocked"
    ) -> None:
        x[...] = numpy.arange(x.size, dtype=numpy.float32).reshape(x.shape)
        original(x, axes, out=out, algorithm=algorithm)
        seen.append(algorithm)
        assert numpy.array_equal(out, x.transpose(axes))

    monkeypatch.setattr(transpose.kernels, "transpose", spy)
    transpose.measure_transpose(1, rounds=1, seconds=1e-9)
    assert set(seen) == set(transpose_algorithms())


def test_the_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["transpose", "--batch", "1", "--rounds", "2", "--seconds", "0.0001"]
    assert bench.call(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["array", "turn", "algorithm"]
    assert len(lines) == 1 + 4 * (len(transpose_algorithms()) + 1)
    assert bench.call([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["algorithm"] for row in rows[:4]] == [*transpose_algorithms(), "numpy"]


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="positive"):
        bench_transpose.call(["--batch", "0"])
