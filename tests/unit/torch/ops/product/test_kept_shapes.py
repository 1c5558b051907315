"""Rows whose library keeps something for each shape are tried for a bounded number of problems."""

from __future__ import annotations

from typing import Any

import torch
from product_case import ROWS, Planted
from torch import Tensor

from bestof.torch.dispatch.override import Override
from bestof.torch.ops.product.onednn import SHAPES
from bestof.torch.ops.product.problem import ProductProblem
from bestof.torch.ops.row import Row
from bestof.torch.ops.search_settings import SEARCHES
from bestof.torch.rows.unpromising import Unpromising


def _always(_problem: ProductProblem) -> bool:
    return True


def _as_is(originals: Any, problem: Any, bias: Any, a: Any, b: Any) -> Tensor:
    return originals(problem.operation, bias, a, b)  # type: ignore[no-any-return]  # as annotated


def test_a_row_is_tried_for_as_many_problems_as_its_library_may_keep() -> None:
    kept: set[ProductProblem] = set()

    def keeps(originals: Any, problem: Any, bias: Any, a: Any, b: Any) -> Tensor:
        kept.add(problem)
        return _as_is(originals, problem, bias, a, b)

    products = Override(
        Planted(Row("as is", _as_is, _always), Row("keeps", keeps, _always, shapes=5))
    )
    b = torch.randn(8, 8)
    for _ in range(3):
        for m in range(1, 40):
            a = torch.randn(m, 8)
            products.selector(ProductProblem.of("mm", a, b, "float32"), None, a, b)
    assert len(kept) == 5


def test_problems_that_wait_take_none_of_these_places() -> None:
    products = Override(
        Planted(
            Row("as is", _as_is, _always),
            Row("keeps", _as_is, lambda problem: problem.m > SEARCHES, shapes=5),
            Row("other", _as_is, _always),
        )
    )
    a, b = torch.randn(SEARCHES + 50, 8), torch.randn(8, 8)
    for m in range(1, SEARCHES + 51):
        products.selector(ProductProblem.of("mm", a[:m], b, "float32"), None, a[:m], b)
    assert len(products.selector._knowledge.searches()) == SEARCHES
    (left_out,) = (one.unpromising for one in products.selector.alternatives if one.name == "keeps")
    assert isinstance(left_out, Unpromising)
    assert not left_out._problems


def test_the_table_bounds_onednn() -> None:
    bounded = {row.name: row.shapes for row in ROWS if row.shapes is not None}
    assert bounded == {"onednn": SHAPES, "float32 onednn": SHAPES}
