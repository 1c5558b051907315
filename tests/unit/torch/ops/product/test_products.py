"""The selector of products: what it chooses, and what it does about failures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from product_case import ROWS, Order, Planted, operands
from torch import Tensor

from bestof.accuracy import ACCURACIES
from bestof.errors import BestofWarning
from bestof.selection import use_policy
from bestof.selection.state.journal import DisqualificationEntry
from bestof.torch.dispatch.override import Override
from bestof.torch.ops.onednn import has_bfloat16
from bestof.torch.ops.product import onednn
from bestof.torch.ops.product.problem import ProductProblem
from bestof.torch.ops.product.product import Product
from bestof.torch.ops.row import Row


def always(_problem: ProductProblem) -> bool:
    return True


def _as_is(originals: Any, problem: Any, bias: Any, a: Any, b: Any) -> Tensor:
    return originals(problem.operation, bias, a, b)  # type: ignore[no-any-return]  # as annotated


def fails(*_: Any) -> Tensor:
    raise RuntimeError("a fake that fails")


def in_float64(_originals: Any, _problem: Any, _bias: Any, a: Tensor, b: Tensor) -> Tensor:
    return (a.double() @ b.double()).float()


def test_the_chosen_row_computes_and_only_pytorchs_counts_as_such() -> None:
    rows = (Row("as is", _as_is, always), Row("float64", in_float64, always))
    _, a, b = operands()
    problem = ProductProblem.of("mm", a, b, "float32")
    for name, is_as_is in (("as is", True), ("float64", False)):
        use_policy(Order(name))
        products = Override(Planted(*rows))
        assert products.shim is not None
        generation = products.shim.generation
        for _ in range(3):
            result = products.selector(problem, None, a, b)
        assert torch.equal(result, a @ b if is_as_is else (a.double() @ b.double()).float())
        assert products.chosen(problem) is rows[0 if is_as_is else 1]
        assert products.shim.generation == generation + 1


def test_a_row_that_fails_on_trial_is_left_out() -> None:
    rows = (Row("as is", _as_is, always), Row("broken", fails, always))
    products = Override(Planted(*rows))
    _, a, b = operands()
    problem = ProductProblem.of("mm", a, b, "float32")

    def run() -> bool:
        return all(torch.equal(products.selector(problem, None, a, b), a @ b) for _ in range(40))

    with pytest.warns(BestofWarning, match="'broken' was disqualified: raised RuntimeError"):
        assert run()
    assert products.chosen(problem) is rows[0]
    (disqualified,) = (
        entry
        for entry in products.selector.journal.entries()
        if isinstance(entry, DisqualificationEntry)
    )
    assert "a fake that fails" in disqualified.reason


def test_a_level_of_accuracy_allows_its_rows() -> None:
    problem = ProductProblem("mm", 1, 4, 96, 72)
    allowed = {
        level: {row.name for row in ROWS if row.is_tried(problem._replace(accuracy=level))}
        for level in ACCURACIES
    }
    assert allowed["exact"] == {"as is"}
    assert {"as is", "native few_rows"} <= allowed["float32"] <= allowed["relaxed"]
    assert "bfloat16" in allowed["relaxed"] - allowed["float32"] or not has_bfloat16()


def test_operands_decide_which_rows_apply() -> None:
    def names(problem: ProductProblem) -> set[str]:
        return {row.name for row in ROWS if row.is_tried(problem)}

    many = ProductProblem("mm", 1, 256, 96, 72)
    few = many._replace(m=32)
    assert ("onednn" in names(many)) == ("onednn" in names(few._replace(b_layout="columns")))
    assert "onednn" not in names(few) | names(many._replace(operation="bmm"))
    assert "native few_rows" in names(few._replace(m=16)) - names(few)
    assert "native blocked" in names(few) & names(many) & names(many._replace(operation="bmm"))


def test_a_program_that_has_switched_onednn_off_does_not_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onednn, "is_there", lambda: True)
    row, problem = Product().row("onednn"), ProductProblem("mm", 1, 256, 96, 72)
    assert row.supports(problem)
    torch._C._set_mkldnn_enabled(False)
    try:
        assert not row.supports(problem)
    finally:
        torch._C._set_mkldnn_enabled(True)


def test_a_native_row_refuses_more_results_than_memory_can_hold_in_silence() -> None:
    huge = ProductProblem.of("mm", torch.empty(1, 1), torch.empty(1, 1), "float32")
    huge = huge._replace(m=2**20, n=2**22)
    for row in ROWS:
        if row.name.startswith("native"):
            assert not row.supports(huge)
