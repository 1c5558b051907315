"""What is chosen and kept while tuning is on, and for how long."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tuned_program import Prefer, assert_same, net, step

import bestof
import bestof.torch as integration
from bestof.torch.dispatch.overrides import convolution_override


def test_each_pass_is_chosen_by_itself_below_the_layer() -> None:
    x, weight = (
        torch.randn(4, 8, 12, 12, requires_grad=True),
        torch.randn(8, 8, 3, 3, requires_grad=True),
    )
    go = torch.randn(4, 8, 10, 10)
    with integration.enabled():
        for _ in range(1000):
            torch.conv2d(x, weight).backward(go)
            override = convolution_override()
            assert override is not None
            # A layer may be decided while a pass below it still tries near ties.
            selectors = (override.layer.layer, *(each for each, _ in override.layer.passes))
            if all(p.settled for each in selectors for p in each.report().problems):
                break
    (problem,) = override.layer.layer.report().problems
    assert problem.settled
    children = {child for alternative in problem.alternatives for child, _ in alternative.children}
    assert children == {
        "convolution forward",
        "convolution input gradient",
        "convolution weight gradient",
    }
    for selector, _ in override.layer.passes:
        (inner,) = selector.report().problems
        # Drift reopens one on a busy machine, and a layer that is computed jointly asks none.
        assert inner.settled or inner.history or problem.decision == "joint"


@pytest.fixture
def sharing(own_process: None) -> Iterator[Any]:
    bestof.use_policy(Prefer("shared im2row"))
    with integration.enabled():
        override = convolution_override()
        assert override is not None
        yield override.layer.kept


def test_a_shared_matrix_is_freed_by_its_backward_pass(sharing: Any) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    loss = model(x).square().sum()
    assert len(sharing) == 3
    loss.backward()
    assert len(sharing) == 0


def test_a_shared_matrix_is_freed_with_the_graph(sharing: Any) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    for _ in range(3):
        loss = model(x * 1).square().sum()
        assert len(sharing) == 3
        del loss
        gc.collect()
        assert len(sharing) == 0


def test_evaluation_over_a_living_dataset_keeps_nothing(sharing: Any) -> None:
    model, dataset = net(), torch.randn(32, 3, 16, 16)
    for start in range(0, 32, 4):
        model(dataset[start : start + 4])
    gc.collect()
    assert len(sharing) == 0


def test_disable_frees_shared_matrices(sharing: Any) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    loss = model(x).square().sum()
    integration.disable()
    assert len(sharing) == 0
    loss.backward()


def test_enabled_between_forward_and_backward(policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    expected = step(model, x)
    for first in (True, False):
        for _ in range(4):
            model.zero_grad()
            if first:
                with integration.enabled():
                    out = model(x)
                out.square().mean().backward()
            else:
                out = model(x)
                with integration.enabled():
                    out.square().mean().backward()
            assert_same([out.detach(), *(p.grad for p in model.parameters())], expected)


def test_traces_look_operators_up_again_after_the_end(own_process: None) -> None:
    """What PyTorch remembers of a kernel that is gone ended the process."""
    found = torch.ops.aten.convolution.default
    key = torch._C.DispatchKey.CPU
    with integration.enabled():
        found._get_dispatch(key)
        assert key in found._dispatch_cache
    assert key not in found._dispatch_cache
    traced = torch.compile(torch.nn.Conv2d(3, 4, 3), backend="aot_eager")
    assert traced(torch.randn(1, 3, 8, 8)).shape == (1, 4, 6, 6)
