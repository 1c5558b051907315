"""Every algorithm, every permutation: exactly NumPy's result, and nothing else written."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bestof import kernels
from bestof.errors import KernelError

SHAPES = (
    (2, 3, 5, 7),
    (1, 3, 9, 37),
    (2, 4, 6, 11),
    (1, 17, 4, 33),
    (3, 1, 65, 2),
    (2, 16, 16, 16),
    (1, 70, 1, 130),
    (1, 1, 1, 1),
    (2, 0, 3, 4),
)


@pytest.mark.parametrize("algorithm", kernels.transpose_algorithms())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_permutation(shape: tuple[int, ...], algorithm: str) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for axes in itertools.permutations(range(4)):
        wanted = np.ascontiguousarray(x.transpose(axes))
        whole = np.full(x.size + 64, np.nan, np.float32)
        out = whole[32 : 32 + x.size].reshape(wanted.shape)
        assert kernels.transpose(x, axes, algorithm=algorithm, out=out) is out
        np.testing.assert_array_equal(out, wanted, err_msg=str(axes))
        assert np.isnan(np.concatenate([whole[:32], whole[32 + x.size :]])).all(), axes


def test_bits_are_kept() -> None:
    x = np.frombuffer(np.random.default_rng(3).bytes(4 * 2 * 5 * 18 * 35), np.float32).reshape(
        2, 5, 18, 35
    )
    y = kernels.transpose(x, (0, 2, 3, 1))
    np.testing.assert_array_equal(y.view(np.uint32), x.transpose(0, 2, 3, 1).view(np.uint32))


def test_bad_arguments() -> None:
    x = np.ones((2, 3, 4, 5), np.float32)
    out = np.full((2, 3, 4, 5), np.nan, np.float32)
    with pytest.raises(KernelError, match=r"axes: expected a permutation .*got \(0, 1, 2, 2\)"):
        kernels.transpose(x, (0, 1, 2, 2))
    with pytest.raises(KernelError, match=r"algorithm: expected one of .*blocked; got 'best'"):
        kernels.transpose(x, (0, 1, 2, 3), algorithm="best")
    with pytest.raises(KernelError, match="x: expected float32"):
        kernels.transpose(x.astype(np.int32), (0, 1, 2, 3))
    with pytest.raises(KernelError, match="x: expected 4 dimensions"):
        kernels.transpose(x[0], (0, 1, 2, 3))
    with pytest.raises(KernelError, match="out: expected shape"):
        kernels.transpose(x, (3, 2, 1, 0), out=out)
    with pytest.raises(KernelError, match="overlaps x"):
        kernels.transpose(x, (0, 1, 2, 3), out=x)
    assert np.isnan(out).all()
