"""What trials of convolutions may take beside the operands, and what is left of it afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from bestof.selection.state.journal import DecisionEntry, TrialEntry
from bestof.torch.ops.convolution import fft, im2col, im2row
from bestof.torch.ops.convolution.conv2d import Conv2d
from bestof.torch.ops.convolution.lowered import matrix_bytes, scratch_limit
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.rows import row_selector

MIB = 2**20


def problem(size: int, channels: int = 64, kernel: int = 3, batch: int = 1) -> ConvProblem:
    return ConvProblem(
        input_shape=(batch, channels, size, size),
        weight_shape=(channels, channels, kernel, kernel),
        padding=(kernel // 2, kernel // 2),
    )


def test_scratch_is_bounded_by_the_operands_and_the_result() -> None:
    large = problem(450)
    operands = 4 * (2 * 64 * 450 * 450 + 64 * 64 * 9)
    assert scratch_limit(large) == 4 * operands
    assert scratch_limit(problem(8)) == 64 * MIB
    assert scratch_limit(problem(900, 1024)) == 1024 * MIB


def test_a_matrix_of_nine_times_a_large_image_is_not_made() -> None:
    large, small = problem(224), problem(112)
    assert matrix_bytes(large) > scratch_limit(large)  # 110 MiB, for 25 of operands and result
    assert matrix_bytes(small) < scratch_limit(small)  # 28 MiB
    for row in (im2row, im2col):
        assert not row.supports(large)
        assert row.supports(small)


def test_spectra_of_large_images_are_made_if_the_kernel_is_small() -> None:
    def depthwise(size: int, kernel: int) -> ConvProblem:
        shape = (64, 1, kernel, kernel)
        return problem(size, 64, kernel)._replace(weight_shape=shape, groups=64)

    assert fft.supports(depthwise(450, 11))
    # 16 filters a channel: their spectra have the size of the image, for few results.
    many = ConvProblem((1, 64, 300, 300), (1024, 1, 251, 251), groups=64)
    assert 16 * fft.spectra_elements(many) > scratch_limit(many)
    assert not fft.supports(many)


def test_memory_of_trials_is_returned_once_a_large_pass_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    returned: list[int] = []
    noted: list[Any] = []
    monkeypatch.setattr(row_selector, "hand_back_unused", lambda: returned.append(len(noted)))
    selection = row_selector.RowSelector(Conv2d())
    entries = [
        TrialEntry(problem(900), "as is", 0, 1.0, True),
        DecisionEntry(problem(64), "as is", "measured"),
        DecisionEntry(problem(900), "as is", "stored"),
        DecisionEntry(problem(900), "as is", "measured"),
    ]
    for entry in entries:
        noted.append(entry)
        selection._listen(entry)
    assert returned == [4]
