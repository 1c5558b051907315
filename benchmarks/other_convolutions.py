"""How much faster does `enable` train networks of 1-D, transposed and 3-D convolutions?

One process, steps in turn: with and without `enable`. Freed memory is kept for both, so the ratios
do not contain what `memory.keep_freed` gains. A ratio above 1 means that `enable` is faster. Ratios
are medians over pairs of steps.

    python benchmarks/other_convolutions.py --threads 2
    python benchmarks/other_convolutions.py --only dcgan --rounds 40
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from training_steps import Step, add_options, compared, prepare, print_choices

from bestof.profile.recording.recorder import processor_name


def dcgan_generator(width: int = 64) -> nn.Module:
    """Return the generator of DCGAN for images of 64 x 64: (N, 100, 1, 1) -> (N, 3, 64, 64)."""
    layers: list[nn.Module] = []
    channels = 100
    for place, filters in enumerate((8 * width, 4 * width, 2 * width, width)):
        stride, padding = (1, 0) if place == 0 else (2, 1)
        layers += [
            nn.ConvTranspose2d(channels, filters, 4, stride, padding, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
        ]
        channels = filters
    return nn.Sequential(*layers, nn.ConvTranspose2d(channels, 3, 4, 2, 1, bias=False), nn.Tanh())


class _Residual(nn.Module):
    """A block of a 1-D ResNet: two convolutions with a wide kernel, and a shortcut."""

    def __init__(self, channels: int, filters: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, filters, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm1d(filters),
            nn.ReLU(),
            nn.Conv1d(filters, filters, kernel, 1, kernel // 2, bias=False),
            nn.BatchNorm1d(filters),
        )
        self.shortcut = (
            nn.Identity() if stride == 1 else nn.Conv1d(channels, filters, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def conv1d_network(kernel: int = 7) -> nn.Module:
    """Return a 1-D ResNet for signals, as of an electrocardiogram: (N, 12, L) -> (N, 9)."""
    blocks: list[nn.Module] = [nn.Conv1d(12, 64, 15, 2, 7, bias=False), nn.BatchNorm1d(64)]
    blocks += [nn.ReLU(), nn.MaxPool1d(3, 2, 1)]
    channels = 64
    for filters in (64, 128, 256):
        stride = 1 if filters == channels else 2
        blocks += [_Residual(channels, filters, kernel, stride)]
        blocks += [_Residual(filters, filters, kernel, 1)]
        channels = filters
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, 9))


class UNet(nn.Module):
    """A U-Net with transposed convolutions on its way up, of 2 or 3 dimensions.

    (N, channels, ...) -> (N, classes, ...); each side is a multiple of 2 ** (levels - 1).
    """

    def __init__(self, dimensions: int, channels: int, width: int, levels: int) -> None:
        super().__init__()
        self._convolution = nn.Conv2d if dimensions == 2 else nn.Conv3d
        self._norm = nn.BatchNorm2d if dimensions == 2 else nn.BatchNorm3d
        up = nn.ConvTranspose2d if dimensions == 2 else nn.ConvTranspose3d
        self._pool = nn.MaxPool2d(2) if dimensions == 2 else nn.MaxPool3d(2)
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList(
            self._block(*pair) for pair in zip([channels, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(up(2 * one, one, 2, 2) for one in widths[-2::-1])
        self.merge = nn.ModuleList(self._block(2 * one, one) for one in widths[-2::-1])
        self.last = self._convolution(width, 2, 1)

    def _block(self, channels: int, filters: int) -> nn.Module:
        return nn.Sequential(
            self._convolution(channels, filters, 3, padding=1, bias=False),
            self._norm(filters),
            nn.ReLU(),
            self._convolution(filters, filters, 3, padding=1, bias=False),
            self._norm(filters),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for place, block in enumerate(self.down):
            x = block(x if place == 0 else self._pool(x))
            kept.append(x)
        for up, merge, skipped in zip(self.up, self.merge, kept[-2::-1], strict=True):
            x = merge(torch.cat([skipped, up(x)], 1))
        return self.last(x)  # type: ignore[no-any-return]


NETWORKS: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "dcgan": ("DCGAN generator", dcgan_generator, (16, 100, 1, 1)),
    "conv1d": ("Conv1d network", conv1d_network, (16, 12, 2048)),
    "unet": ("U-Net with transposed convolutions", lambda: UNet(2, 3, 64, 4), (2, 3, 128, 128)),
    "unet3d": ("Conv3d U-Net", lambda: UNet(3, 1, 16, 3), (1, 1, 32, 64, 64)),
}


def training_step(network: nn.Module, shape: tuple[int, ...]) -> Step:
    """Return a function that trains a network by one step of SGD on fixed numbers."""
    x = torch.randn(shape)
    target = torch.randn_like(network(x))
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), target).backward()
        optimizer.step()

    return step


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, NETWORKS, rounds=20, settling=300)
    options = parser.parse_args(arguments)
    clock = prepare(options)
    print(f"{processor_name()}, {options.threads} threads, PyTorch {torch.__version__}")
    print(f"{'network':36} {'PyTorch':>10} {'enable':>10} {'ratio':>6}  settled after")
    for name in [options.only] if options.only else NETWORKS:
        label, make, shape = NETWORKS[name]
        torch.manual_seed(0)
        steps, times = compared(
            training_step(make(), shape), options.rounds, options.settling, clock
        )
        plain, enabled = (1e3 * statistics.median(one) for one in times)
        ratio = statistics.median(one / other for one, other in zip(*times, strict=True))
        print(
            f"{label:36} {plain:7.1f} ms {enabled:7.1f} ms {ratio:6.2f}  {steps} steps", flush=True
        )
    if options.choices:
        print_choices()


if __name__ == "__main__":
    main()
