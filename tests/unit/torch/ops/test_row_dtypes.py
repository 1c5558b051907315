"""Dtypes are columns of rows: they decide which rows are tried, and which calls answered."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from bestof.torch.ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, name_of
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.row import Row
from bestof.torch.ops.table import OPERATIONS

# Parts are forms of convolutions, whose rows are those of 2-D ones.
CHOSEN = [one for one in OPERATIONS if not one.part]


class _Problem(NamedTuple):
    dtype: str


class _Untyped(NamedTuple):
    size: int


def test_a_row_is_tried_for_problems_of_its_dtypes() -> None:
    asked: list[str] = []

    def supports(problem: _Problem) -> bool:
        asked.append(problem.dtype)
        return True

    row: Row[_Problem] = Row("one", print, supports, dtypes=(BFLOAT16, FLOAT64))
    tried = [row.is_tried(_Problem(name)) for name in ("float32", "bfloat16", "float16", "float64")]
    assert tried == [False, True, False, True]
    assert asked == ["bfloat16", "float64"]  # `supports` need not look at dtypes
    assert row.columns(_Problem("bfloat16")) == ("bfloat16", "bfloat16", "float32")
    assert row.columns(_Problem("float16")) is None


def test_pytorchs_own_row_and_problems_without_dtype() -> None:
    own: Row[_Problem] = Row("as is", print)
    assert own.is_tried(_Problem("float16"))
    assert own.columns(_Problem("float16")) == FLOAT16
    assert own.columns(_Problem("float64")) == FLOAT64
    untyped: Row[_Untyped] = Row("one", print, dtypes=(FLOAT32,))
    assert untyped.is_tried(_Untyped(3))


@pytest.mark.parametrize("operation", CHOSEN, ids=lambda one: one.name)
def test_every_row_beside_pytorchs_names_dtypes(operation: Operation[object]) -> None:
    assert operation.rows[0].dtypes is None
    for row in operation.rows[1:]:
        assert row.dtypes, row.name
        operands = [one.operands for one in row.dtypes]
        assert len(set(operands)) == len(operands)
        for one in row.dtypes:
            eps = [torch.finfo(getattr(torch, name)).eps for name in one]
            assert eps[2] <= min(eps[:2]), f"{row.name} sums in fewer bits than it returns"
    assert {name_of(one) for one in operation.dtypes} == {
        one.operands for row in operation.rows[1:] for one in row.dtypes or ()
    }
