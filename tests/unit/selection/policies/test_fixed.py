"""The policy that always takes the named alternative."""

from __future__ import annotations

import pytest

from bestof.errors import InvalidArgument
from bestof.selection.policies.fixed import Fixed


def test_is_settled_from_the_start() -> None:
    search = Fixed("b").start(["a", "b"])
    assert (search.ask(), search.winner) == (None, 1)
    search.tell(1, 100.0)
    search.drop(0)
    assert (search.ask(), search.winner) == (None, 1)
    search.drop(1)
    assert (search.ask(), search.winner) == (None, None)


def test_refuses_a_name_that_no_alternative_has() -> None:
    with pytest.raises(InvalidArgument) as refused:
        Fixed("c").start(["a", "b"])
    assert str(refused.value) == "Fixed: name: expected one of a, b, got 'c'"
