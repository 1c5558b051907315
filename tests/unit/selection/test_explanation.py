"""Why a recorded alternative was chosen, as `bestof store explain` tells it."""

from __future__ import annotations

from bestof.selection.reports.explanation import explain
from bestof.selection.store.record import Evidence, Record


def test_a_tie_of_another_policy_is_named() -> None:
    """It says that the decision is stale only if no operation of PyTorch decides so."""
    evidence = (Evidence("a", "1", (1.05,) * 8), Evidence("b", "1", (1.0,) * 8))
    (found,) = explain([Record("product", "1", "here", "a", evidence, 0.0)], [], "product", None)
    assert found.why.startswith(
        "b has a median 4.8 % lower than a, which is more than a tie of 2%: operations of PyTorch "
        "take up to 8 % for one"
    ), found.why
