"""Which of two results is wrong, of PyTorch's own kernel and of an alternative."""

from __future__ import annotations

import pytest
import torch

from bestof.torch.ops.bound import ErrorBound
from bestof.torch.ops.comparison import Scale, Side, compare

BOUND = ErrorBound(1e-6, 1e-5)
ALLOWED = 4e-6
"""What is allowed where float64 decides, of results near 1."""


@pytest.mark.parametrize(("times", "is_out"), [(0.5, False), (5, False), (20, False), (1e4, True)])
def test_pytorch_is_taken_out_where_it_is_broken_not_where_it_rounds(
    times: float, is_out: bool
) -> None:
    right = torch.randn(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    noise = torch.randn(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    own = (right + times * ALLOWED * noise).float()
    scale = Scale(1.0, 4.0)
    found = compare(Side(right.float(), BOUND), Side(own, BOUND), scale, lambda: right)
    assert found.wrong is None
    assert (found.reference_wrong is not None) == is_out
    turned = compare(Side(own, BOUND), Side(right.float(), BOUND), scale, lambda: right)
    assert (turned.wrong is not None) == (times > 1)  # an alternative is
    assert turned.reference_wrong is None


def test_both_may_err_alike_where_terms_cancel() -> None:
    right = torch.randn(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    one, other = (
        (right + 10 * ALLOWED * torch.randn(right.shape, generator=seed, dtype=right.dtype)).float()
        for seed in map(torch.Generator().manual_seed, (3, 4))
    )
    found = compare(Side(one, BOUND), Side(other, BOUND), Scale(1.0, 4.0), lambda: right)
    assert (found.wrong, found.reference_wrong) == (None, None)
