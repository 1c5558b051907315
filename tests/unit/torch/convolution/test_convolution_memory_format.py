"""The layout of a tensor by its strides, as PyTorch judges it."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from bestof.torch.ops.memory_format import in_format, layout_of, placeholder, torch_format

SHAPES = list(itertools.product((1, 2), (1, 3), (1, 4), (1, 5)))


def views(shape: tuple[int, ...]) -> dict[str, Tensor]:
    n, c, h, w = shape
    last = torch.empty(n, c + 1, h + 1, w, memory_format=torch.channels_last)
    return {
        "channels first": torch.empty(shape),
        "channels last": torch.empty(shape, memory_format=torch.channels_last),
        "sliced": torch.empty(n, 2 * c, h, 2 * w)[:, ::2, :, ::2],
        "sliced channels last": last[:, :c, :h],
        "expanded": torch.empty(1, 1, h, w).expand(shape),
        "expanded batch": torch.empty(1, c, h, w, memory_format=torch.channels_last).expand(shape),
        "width before height": torch.empty(n, c, w, h).transpose(2, 3),
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_channels_last_is_what_pytorch_keeps(shape: tuple[int, ...]) -> None:
    # Padding allocates its result in the format that PyTorch sees in the input; by one row and
    # column and nothing else, so that the result shows it wherever there is more than one channel.
    for name, view in views(shape).items():
        padded = torch.constant_pad_nd(view, [1, 0, 1, 0])
        seen = (
            padded.stride() == torch.empty(padded.shape, memory_format=torch.channels_last).stride()
        )
        assert (layout_of(view) == "channels_last") == seen, name


def test_the_layout_other_is_neither_first_nor_last() -> None:
    layouts = {name: layout_of(view) for name, view in views((2, 3, 4, 5)).items()}
    assert layouts == {
        "channels first": "channels_first",
        "channels last": "channels_last",
        "sliced": "other",
        "sliced channels last": "channels_last",
        "expanded": "other",
        "expanded batch": "other",
        "width before height": "other",
    }
    assert layout_of(torch.empty(0, 3, 4, 5)) == "channels_first"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_results_have_the_strides_of_a_fresh_tensor(
    shape: tuple[int, ...], channels_last: bool
) -> None:
    fresh = torch.empty(shape, memory_format=torch_format(channels_last))
    assert placeholder(fresh, shape, channels_last).stride() == fresh.stride()
    for name, view in views(shape).items():
        if "expanded" not in name:
            view.copy_(torch.randn(shape))
        result = in_format(view, channels_last)
        assert result.stride() == fresh.stride(), name
        if "expanded" not in name:
            assert torch.equal(result, view), name
