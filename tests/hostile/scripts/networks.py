"""Shared by the scripts with PyTorch: a small network, and the comparison with plain PyTorch."""

import torch
from torch import Tensor, nn


def network() -> nn.Module:
    """Return convolutions, a pooling and a linear layer, with fixed weights."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 3 * 3, 5),
    )


def images(count: int = 2) -> Tensor:
    """Return images, the same at every call."""
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(4))


def assert_close(got: Tensor, expected: Tensor, part: float = 1e-4) -> None:
    """Compare by the largest value: five layers of float32, whose errors stay below 1e-4 of it."""
    scale = float(expected.detach().abs().max())
    error = float((got.detach().double() - expected.detach().double()).abs().max())
    assert error <= part * scale, f"off by {error / scale:.2e} of the largest value"
