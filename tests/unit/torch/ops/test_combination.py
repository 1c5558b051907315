"""Combinations of parts of a result: what they sum, and that no wrong element is hidden."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bestof.torch.ops.combination import combined, numbers_for
from bestof.torch.ops.convolution.passes import WEIGHT_GRADIENT
from bestof.torch.ops.onednn import is_known


def images() -> Tensor:
    return torch.randn(6, 4, 5, 3, generator=torch.Generator().manual_seed(0))


LAYOUTS = {
    "channels first": images,
    "channels last": lambda: images().to(memory_format=torch.channels_last),
    "a slice": lambda: images()[..., 1:],
    "expanded": lambda: images()[:, :1].expand(6, 4, 5, 3),
    "a matrix": lambda: images()[:, :, 0, 0],
    "columns": lambda: images()[:, :, 0, 0].t().contiguous().t(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_are_summed(layout: str) -> None:
    values, numbers = LAYOUTS[layout](), numbers_for(6)
    right = torch.tensordot(numbers.double(), values.double(), dims=1).unsqueeze(0)
    torch.testing.assert_close(combined(values, numbers).double(), right, rtol=1e-5, atol=1e-5)


def test_a_combination_lies_in_memory_as_its_parts_do() -> None:
    found = combined(LAYOUTS["channels last"](), numbers_for(6))
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_no_number_hides_a_part_and_both_signs_occur() -> None:
    state = torch.get_rng_state()
    numbers = numbers_for(1000)
    assert torch.equal(torch.get_rng_state(), state)
    assert 0.5 <= float(numbers.abs().min()) < float(numbers.abs().max()) <= 1.5
    assert 300 < int((numbers > 0).sum()) < 700
    assert not torch.equal(numbers, numbers_for(1000))


@pytest.mark.parametrize(("channels", "stride", "is_asked"), [(7, 4, False), (7, 1, True)])
def test_pytorch_is_not_asked_for_what_onednn_computes_outside_of_its_memory(
    channels: int, stride: int, is_asked: bool
) -> None:
    """One filter in channels last is another kernel of oneDNN than all filters (issues/6035)."""
    x = torch.randn(3, channels, 28, 28).to(memory_format=torch.channels_last)
    weight, side = torch.randn(64, channels, 1, 1), 28 // stride
    gradient = torch.randn(3, 64, side, side)
    geometry = ((stride, stride), (0, 0), (1, 1), False, (0, 0), 1, (False, True, False))

    def is_combined(image: Tensor) -> bool:
        call = WEIGHT_GRADIENT.call("float32", gradient, image, weight, None, *geometry)
        assert call is not None
        return WEIGHT_GRADIENT.combination((call.problem, *call.operands)) is not None

    assert is_combined(x) == (is_asked and is_known())
    assert is_combined(x.contiguous())
