"""Which problems are neighbours, and how a new batch size uses its neighbour's decision."""

from __future__ import annotations

import torch

import bestof.torch as integration
from bestof.selection.state.journal import TrialEntry
from bestof.torch.dispatch.overrides import convolution_override
from bestof.torch.ops.convolution.neighbourhood import Neighbourhood
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.search_settings import PATIENCE


def problem(batch: int = 8, size: int = 16, filters: int = 4, **changes: object) -> ConvProblem:
    return ConvProblem(
        (batch, 3, size, size), (filters, 3, 3, 3), padding=(1, 1), **changes
    )._replace()  # type: ignore[arg-type]


def test_the_nearest_come_first_and_only_what_was_asked_about() -> None:
    near: Neighbourhood[ConvProblem] = Neighbourhood(lambda one: one)
    assert list(near(problem())) == []
    assert list(near(problem(batch=2))) == [problem()]
    assert list(near(problem(size=24))) == [problem(), problem(batch=2)]
    assert list(near(problem(batch=3))) == [problem(batch=2), problem(), problem(size=24)]


def test_other_layers_and_much_larger_images_are_not_near() -> None:
    near: Neighbourhood[ConvProblem] = Neighbourhood(lambda one: one)
    near(problem())
    assert list(near(problem(size=33))) == []
    for other in (
        problem(filters=5),
        problem(stride=(2, 2)),
        problem(dtype="float64"),
        problem(threads=2),
    ):
        assert list(near(other)) == []
    assert list(near(problem(bias=True))) == [problem()]


def test_what_else_must_agree() -> None:
    near: Neighbourhood[tuple[ConvProblem, bool]] = Neighbourhood(
        lambda pair: pair[0], lambda pair: pair[1]
    )
    near((problem(), True))
    assert list(near((problem(batch=2), False))) == []
    assert list(near((problem(batch=2), True))) == [(problem(), True)]


def test_the_number_of_problems_is_bounded() -> None:
    near: Neighbourhood[ConvProblem] = Neighbourhood(lambda one: one)
    for batch in range(1, 500):
        assert len(list(near(problem(batch=batch)))) <= 64
    for filters in range(1, 3000):
        near(problem(filters=filters))
    assert len(near._families) <= 1024


def test_the_last_batch_of_an_epoch_takes_the_decision_of_the_others() -> None:
    weight = torch.randn(8, 8, 3, 3)
    with torch.no_grad(), integration.enabled():
        override = convolution_override()
        assert override is not None
        selector = override.layer.forward_pass
        for _ in range(2000):
            torch.conv2d(torch.randn(8, 8, 12, 12), weight)
            (first,) = selector.report().problems
            if first.settled:
                break
        assert first.settled
        last = torch.randn(5, 8, 12, 12)
        for _ in range(PATIENCE):
            torch.conv2d(last, weight)
        tried = [
            e.alternative
            for e in selector.journal.entries()
            if isinstance(e, TrialEntry) and "b5" in str(e.problem)
        ]
        assert set(tried) <= {first.decision}
        for _ in range(2000):
            torch.conv2d(last, weight)
        assert all(one.settled for one in selector.report().problems)
