"""One-sided and negative padding."""

from __future__ import annotations

import itertools

import pytest
import torch

from bestof.torch.ops.convolution.fft import good_size
from bestof.torch.ops.convolution.pads import Pads, pad, symmetric_remainder, trimmed

IMAGE = torch.arange(1.0, 43.0).reshape(1, 1, 6, 7)


@pytest.mark.parametrize(
    "pads", list(itertools.product([(0, 0), (2, 1), (-1, 3), (-2, -1)], [(0, 0), (1, -2), (0, 4)]))
)
def test_positive_adds_zeros_and_negative_crops(pads: Pads) -> None:
    (top, bottom), (left, right) = pads
    around = torch.zeros(1, 1, 26, 27)
    around[:, :, 10:16, 10:17] = IMAGE
    assert torch.equal(
        pad(IMAGE, pads), around[:, :, 10 - top : 16 + bottom, 10 - left : 17 + right]
    )
    image, padding = symmetric_remainder(IMAGE, pads)
    assert min(padding) >= 0
    rows, columns = padding
    assert torch.equal(pad(image, ((rows, rows), (columns, columns))), pad(IMAGE, pads))


def test_nothing_is_copied_where_nothing_is_added() -> None:
    assert (
        pad(IMAGE, ((0, -1), (-2, 0))).untyped_storage().data_ptr()
        == IMAGE.untyped_storage().data_ptr()
    )
    image, padding = symmetric_remainder(IMAGE, ((2, 2), (1, 1)))
    assert padding == (2, 1)
    assert image.untyped_storage().data_ptr() == IMAGE.untyped_storage().data_ptr()


@pytest.mark.parametrize("unread", [(0, 0), (1, 0), (2, 3), (4, 5)])
def test_what_a_stride_never_reads_is_taken_from_the_end(unread: tuple[int, int]) -> None:
    pads: Pads = ((1, 2), (0, 3))
    whole = pad(IMAGE, pads)
    extents = (whole.shape[2] - unread[0], whole.shape[3] - unread[1])
    assert torch.equal(pad(*trimmed(IMAGE, pads, extents)), whole[:, :, : extents[0], : extents[1]])


def test_sizes_of_transforms_have_small_factors() -> None:
    assert [good_size(size) for size in (1, 2, 7, 13, 31, 47, 101, 1000, 1001)] == [
        2, 2, 8, 16, 32, 48, 108, 1000, 1024,
    ]  # fmt: skip
