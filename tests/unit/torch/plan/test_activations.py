"""Every row of the activations of plans says what the native kernel of that name computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bestof import kernels
from bestof.errors import KernelError
from bestof.torch.plan.layers.activations import ACTIVATIONS, Activation

# Each row reads the slopes, or computes the same for all of them.
CASES = [
    pytest.param(row, slope, id=f"{row.name} {slope}")
    for row in ACTIVATIONS
    for slope in (0.01, 0.3, -0.2)
]
X = torch.cat([torch.linspace(-8, 8, 4001), torch.tensor([0.0, -0.0, 3.0, -3.0, 6.0, 1e4, -1e4])])


def applied(row: Activation, x: torch.Tensor, slope: float) -> torch.Tensor:
    return row.apply(x.clone(), slope)


@pytest.mark.parametrize(("row", "slope"), CASES)
def test_the_kernel_computes_what_pytorch_does(row: Activation, slope: float) -> None:
    images = np.ascontiguousarray(X.numpy().reshape(1, 1, -1, 1))
    one = np.ones((1, 1, 1, 1), np.float32)
    got = kernels.conv2d(images, one, activation=(row.name, slope)).ravel()
    wanted = applied(row, X.double(), slope)
    # 32 roundings of the activation's own arithmetic, as in the numerics of kernels.
    error = np.abs(got - wanted.numpy())
    assert (error <= 32 * 2**-24 * np.maximum(1, np.abs(X.numpy()))).all()


@pytest.mark.parametrize(("row", "slope"), CASES)
def test_the_row_knows_the_derivative(row: Activation, slope: float) -> None:
    x = torch.linspace(-8, 8, 200_001, dtype=torch.float64)
    y = applied(row, x, slope)
    quotients = y.diff() / x.diff()
    assert quotients.abs().max() <= row.steepest + 1e-6
    if row.never_falls(slope):
        assert quotients.min() >= -1e-9


@pytest.mark.parametrize(("row", "slope"), CASES)
def test_kernels_pool_activations_that_never_fall(row: Activation, slope: float) -> None:
    def make() -> kernels.Conv2dPlan:
        return kernels.Conv2dPlan(
            (1, 8, 8, 16),
            (16, 3, 3, 16),
            padding=1,
            algorithm="winograd4",
            activation=(row.name, slope),
            pool=True,
        )

    if row.never_falls(slope):
        make()
    else:
        with pytest.raises(KernelError, match="never falls"):
            make()
