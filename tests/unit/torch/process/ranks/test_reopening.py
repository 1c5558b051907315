"""A problem that another rank reopens: what answers its calls without Python forgets the
decision."""

from __future__ import annotations

import threading

import torch

import bestof.torch as bt
from bestof.torch.dispatch.overrides import convolution_override


def test_calls_are_trials_again_as_soon_as_another_rank_has_reopened_their_problem() -> None:
    bt.enable()
    x, weight = torch.ones(2, 4, 12, 12), torch.ones(4, 4, 3, 3)
    override = convolution_override()
    assert override is not None
    selector = override.layer.forward_pass
    with torch.no_grad():
        for _ in range(3000):
            torch.conv2d(x, weight)
            if selector.report().problems and all(
                one.settled for one in selector.report().problems
            ):
                break
        (problem,) = override.layer.forward_calls.totals()
        for _ in range(3):
            torch.conv2d(x, weight)
        before = selector.trials
        torch.conv2d(x, weight)
        assert selector.trials == before
        found: list[bool] = []
        courier = threading.Thread(target=lambda: found.append(selector.race_again(problem)))
        courier.start()
        courier.join()
        assert found == [True]
        for count in (1, 2, 3):
            torch.conv2d(x, weight)
            assert selector.trials == before + count
    assert selector.race_again(problem) is False


def test_a_problem_that_is_not_known_is_not_reopened() -> None:
    bt.enable()
    override = convolution_override()
    assert override is not None
    assert override.layer.forward_pass.race_again("no problem") is False
