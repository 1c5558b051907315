"""Combinations of parts of a result: what they sum, and that no wrong element is hidden."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bestof.torch.ops.combination import combined, numbers_for


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
