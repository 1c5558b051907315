"""`bestof bench dispatch --torch`: what it measures, and that it leaves PyTorch unchanged."""

from __future__ import annotations

import math

import pytest
import torch

from bestof.bench import torch_dispatch
from bestof.bench.torch_dispatch import measure
from bestof.errors import InvalidArgument
from bestof.torch.backends.shim import ASKED_EVERY


def test_every_case_is_measured_and_pytorch_is_as_it_was() -> None:
    rows = measure(repeats=2, calls=5)
    assert [row.name for row in rows] == [
        "forward, without gradients",
        "forward, with gradients",
        "backward",
        "linear, 8 x 64 x 64",
        "linear, 16 x 512 x 512",
    ]
    assert all(
        math.isfinite(time)
        for row in rows
        for time in (row.pytorch, row.passed, row.enabled, row.in_python)
        if time is not None
    )
    assert [row.in_python is None for row in rows] == [False] * 3 + [True] * 2
    assert all(row.pytorch > 0 for row in rows)
    for name in ("aten::convolution", "aten::convolution_backward"):
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")


@pytest.mark.parametrize("by_shim", [True, False])
def test_the_calls_that_are_timed_are_settled_on_pytorch_as_is(by_shim: bool) -> None:
    override = torch_dispatch._settled_override(by_shim)
    asked = sum(selector.settled_calls for selector, _ in override.layer.passes)
    override.register()
    for _, work in torch_dispatch._cases():
        work(2 * ASKED_EVERY)
    override.remove()
    assert override.shim is not None or not by_shim
    assert [found and found.chosen for found in override.layer._forward.values()] == [True] * 2
    assert [found and found.chosen for found in override.layer._backward.values()] == [True]
    # Two rounds of each case; the last computes both gradients, after one forward pass.
    assert sum(selector.settled_calls for selector, _ in override.layer.passes) - asked in range(
        8, 12
    )


def test_the_products_that_are_timed_are_small_or_settled() -> None:
    override = torch_dispatch._settled_products()
    assert override.shim is not None
    (_, small), (_, settled) = torch_dispatch._product_cases()
    asked = override.shim.asked
    override.register()
    small(2 * ASKED_EVERY)
    assert override.shim.asked == asked
    settled(2 * ASKED_EVERY)
    override.remove()
    assert override.shim.asked == asked + 2


@pytest.mark.parametrize(("repeats", "calls"), [(1, 10), (2, 0)])
def test_too_few_to_judge_by_is_refused(repeats: int, calls: int) -> None:
    with pytest.raises(InvalidArgument, match="at least 2 repeats and 1 call"):
        measure(repeats, calls)
