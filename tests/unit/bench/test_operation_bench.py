"""Every row of the operations is measured on small examples."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
import torch

from bestof.bench.operation import measure_operations
from bestof.cli import bench
from bestof.errors import InvalidArgument
from bestof.torch.ops import table
from bestof.torch.ops.attention.attention import Attention
from bestof.torch.ops.pooling import image
from bestof.torch.ops.pooling.avg_pool2d import AvgPool2d
from bestof.torch.ops.row import Row


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "LEAST_BYTES", 1)
    x = torch.randn(1, 3, 6, 6)
    arguments: tuple[Any, ...] = (x, (2, 2), (2, 2), (0, 0), False, True, None)
    monkeypatch.setattr(AvgPool2d, "examples", lambda _: {"small": arguments})


def test_every_row_is_beside_pytorchs_own() -> None:
    ticks = count()
    rows = measure_operations(
        ["average pooling"], rounds=3, seconds=1.0, clock=lambda: float(next(ticks))
    )
    assert [row.row for row in rows] == [one.name for one in AvgPool2d.rows]
    assert {(row.seconds, row.ratio, row.spread, row.wrong) for row in rows} == {
        (1.0, 1.0, 0.0, None)
    }


def test_a_wrong_row_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Row[Any] = Row("wrong", lambda original, problem, x: original(x, *problem[1:7]) + 1.0)
    monkeypatch.setattr(AvgPool2d, "rows", (AvgPool2d.rows[0], wrong))
    rows = measure_operations(["average pooling"], rounds=1, seconds=1e-6)
    assert [row.wrong for row in rows] == [None, "an average differs"]


def test_every_operation_has_examples_that_are_chosen_for() -> None:
    for operation in table.OPERATIONS:
        for arguments in operation.examples().values():
            call = operation.call("float32", *arguments)
            assert call is not None
            assert operation.rows[0].is_tried(call.problem)
            if isinstance(operation, Attention):
                assert call.problem.size == 64
        assert operation.examples()


def test_the_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["operation", "average pooling", "--rounds", "2", "--seconds", "0.0001"]
    assert bench.call(arguments) == 0
    printed = capsys.readouterr().out
    assert "native transposition" in printed
    assert "threads" in printed
    assert bench.call([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["row"] for row in found["times"]] == [one.name for one in AvgPool2d.rows]
    assert found["host"]


@pytest.mark.parametrize(
    "change", [{"names": ["pooling"]}, {"rounds": 0}, {"seconds": 0.0}, {"seconds": float("nan")}]
)
def test_bad_input_gets_one_clear_error(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        measure_operations(**change)
