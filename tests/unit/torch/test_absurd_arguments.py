"""Arguments that no image has: the program gets PyTorch's behaviour, with the text of its
errors."""

from __future__ import annotations

import re
from itertools import cycle
from math import log
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bestof.torch as bt
from bestof.torch.ops.convolution.fft import good_size
from bestof.torch.ops.row import Row

LARGE: list[dict[str, Any]] = [
    {"padding": 2**40},
    {"padding": 2**35},
    {"padding": 2**31},
    {"padding": 2**20},
    {"padding": 2**15},
    {"padding": 2**62},
    {"padding": (2**40, 0)},
    {"stride": 2**31},
    {"stride": 2**62},
    {"padding": 2**20, "stride": 2**20},
    {"padding": 2**22, "stride": 2**23},
    {"padding": 2**31, "stride": 2**31},
    {"padding": 2**30, "dilation": 2**30},
    {"padding": 1, "dilation": 2**62},
]


def outcome(x: Tensor, weight: Tensor, arguments: dict[str, Any]) -> tuple[str, Any]:
    """The shape of the result, or the type and text of the error, without addresses."""
    try:
        y = F.conv2d(x, weight, **arguments)
        if y.requires_grad:
            y.sum().backward()
        return "shape", tuple(y.shape)
    except Exception as error:  # whatever PyTorch raises is what is compared
        return type(error).__name__, re.sub("0x[0-9a-f]+", "", str(error))


@pytest.mark.parametrize("arguments", LARGE, ids=str)
@pytest.mark.parametrize("trained", [False, True])
def test_absurd_arguments_act_as_in_pytorch(arguments: dict[str, Any], trained: bool) -> None:
    x = torch.randn(1, 4, 8, 8)
    weight = torch.randn(4, 4, 3, 3, requires_grad=trained)
    expected = outcome(x, weight, arguments)
    bt.enable()
    assert [outcome(x, weight, arguments) for _ in range(2)] == [expected, expected]


def test_a_call_that_no_alternative_can_answer_is_answered_by_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = cycle((MemoryError("one"), RuntimeError("another")))

    def fail(*_: object) -> Tensor:
        raise next(errors)

    x, weight = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3)
    expected = F.conv2d(x, weight)
    monkeypatch.setattr(Row, "function", property(lambda _: fail, lambda *_: None))
    bt.enable()
    assert torch.equal(F.conv2d(x, weight), expected)


def test_good_sizes_are_the_smallest_and_found_at_once() -> None:
    def is_good(size: int) -> bool:
        for factor in (2, 3, 5):
            while size % factor == 0:
                size //= factor
        return size == 1

    for least in (*range(1, 300), 9_999, 65_537):
        size = least + least % 2
        while not is_good(size):
            size += 2
        assert good_size(least) == size
    huge = good_size(2**40 + 1)
    assert log(huge, 2) < 40.01
    assert is_good(huge)
