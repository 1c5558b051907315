"""Small networks of all kinds that plans must run."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.uniform_(norm.bias, -0.5, 0.5)
    nn.init.uniform_(norm.running_mean, -0.5, 0.5)
    nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return norm


class Unit(nn.Sequential):
    """Convolution, norm, activation."""

    def __init__(
        self,
        ins: int,
        outs: int,
        kernel: int,
        stride: int = 1,
        act: nn.Module | None = None,
        groups: int = 1,
    ):
        convolution = nn.Conv2d(ins, outs, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(
            convolution, _norm(outs), act if act is not None else nn.ReLU(inplace=True)
        )


class Vgg(nn.Sequential):
    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for ins, outs in ((3, 8), (8, 16), (16, 24)):
            layers += [nn.Conv2d(ins, outs, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        layers += [
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(96, 32),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(32, 10),
        ]
        super().__init__(*layers)


class Residual(nn.Module):
    """A block of ResNet18 (basic) or ResNet50 (bottleneck)."""

    def __init__(self, ins: int, outs: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        if bottleneck:
            self.body = nn.Sequential(
                Unit(ins, outs // 4, 1),
                Unit(outs // 4, outs // 4, 3, stride),
                nn.Conv2d(outs // 4, outs, 1),
                _norm(outs),
            )
        else:
            self.body = nn.Sequential(
                Unit(ins, outs, 3, stride), nn.Conv2d(outs, outs, 3, padding=1), _norm(outs)
            )
        same = ins == outs and stride == 1
        self.skip = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(ins, outs, 1, stride), _norm(outs))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += self.skip(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    def __init__(self, bottleneck: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(Unit(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1))
        blocks = [
            Residual(16, 32, 1, bottleneck),
            Residual(32, 32, 1, bottleneck),
            Residual(32, 48, 2, bottleneck),
        ]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1), 1))


class MobileNet(nn.Module):
    """Depthwise convolutions, ReLU6, hard-swish, squeeze and excitation, linear bottlenecks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Unit(3, 16, 3, 2, nn.Hardswish(inplace=True))
        self.expand = Unit(16, 48, 1, act=nn.ReLU6(inplace=True))
        self.depthwise = Unit(48, 48, 5, act=nn.ReLU6(inplace=True), groups=48)
        self.squeeze = nn.Sequential(
            nn.Conv2d(48, 8, 1), nn.ReLU(), nn.Conv2d(8, 48, 1), nn.Hardsigmoid()
        )
        self.project = nn.Sequential(nn.Conv2d(48, 16, 1, bias=False), _norm(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.depthwise(self.expand(x))
        y = y * self.squeeze(y.mean((2, 3), keepdim=True))
        return self.head((self.project(y) + x).mean([2, 3]))


class DenseNet(nn.Module):
    """Norms before the convolutions, concatenations of all that came before."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norms = nn.ModuleList(_norm(16 + 8 * number) for number in range(3))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(16 + 8 * number, 8, 3, padding=1) for number in range(3)
        )
        self.transition = nn.Sequential(_norm(40), nn.ReLU(), nn.Conv2d(40, 20, 1), nn.AvgPool2d(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            x = torch.cat([x, convolution(F.relu(norm(x)))], 1)
        return self.transition(x)


class UNet(nn.Module):
    """Skips over a transposed convolution and an upsampling; the output is an image."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = Unit(3, 8, 3), Unit(8, 16, 3), Unit(16, 24, 3)
        self.up2, self.up1 = (
            nn.ConvTranspose2d(24, 16, 2, 2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
        )
        self.side2, self.side1 = Unit(32, 16, 3), Unit(24, 8, 3)
        self.out = nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        second = self.side2(torch.cat([self.up2(bottom), second], 1))
        return self.out(self.side1(torch.cat([self.up1(second), first], 1)))


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 32, bias=False), nn.ReLU(), nn.Linear(32, 4)
        )


class Transformer(nn.Module):
    """Patches, two encoder layers of our own writing, the mean of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.places = nn.Parameter(torch.randn(1, 64, 32) * 0.1)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))
        self.queries = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))
        self.mixers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.places[:, : x.shape[1]]
        for layer in range(2):
            q, k, v = self.queries[layer](self.norms[2 * layer](x)).chunk(3, -1)
            q, k, v = (t.view(t.shape[0], t.shape[1], 4, 8).transpose(1, 2) for t in (q, k, v))
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = x + self.mixers[layer](mixed)
            x = x + self.feeds[layer](self.norms[2 * layer + 1](x))
        return self.head(x.mean(1))


class Shuffle(nn.Module):
    """Grouped convolutions, halves of the channels, a shuffle by views, leaky ReLU, SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.left = Unit(8, 8, 3, act=nn.LeakyReLU(0.2), groups=2)
        self.right = Unit(8, 8, 3, act=nn.SiLU())
        self.stem = nn.Conv2d(3, 16, 3, padding="same", dilation=2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        left, right = self.stem(x).chunk(2, 1)
        both = torch.cat([self.left(left), self.right(right)], 1)
        n, c, h, w = both.shape
        shuffled = both.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return {"shuffled": shuffled, "first": both[:, :1]}


class Windows(nn.Module):
    """Views that need a layout of their own: permuted, copied, looked at by strides and as complex
    numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        n, c, h, w = x.shape
        tokens = x.permute(0, 2, 3, 1).contiguous().view(n, h * w, c)
        pairs = x.clone(memory_format=torch.contiguous_format).as_strided(
            (n, h, w), (c * h * w, w, 1)
        )
        turned = torch.view_as_real(
            torch.view_as_complex(tokens.view(n, h, w, c // 2, 2)) * 1j
        ).flatten(3)
        return self.mix(turned), pairs


class Waves(nn.Sequential):
    """1-D convolutions, which PyTorch runs."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(3, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 4, 3)
        )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vgg": (Vgg, (2, 3, 19, 23)),
    "resnet, basic": (lambda: ResNet(False), (2, 3, 33, 35)),
    "resnet, bottleneck": (lambda: ResNet(True), (1, 3, 32, 32)),
    "mobilenet": (MobileNet, (2, 3, 17, 16)),
    "densenet": (DenseNet, (2, 3, 12, 14)),
    "unet": (UNet, (1, 3, 16, 24)),
    "mlp": (Mlp, (3, 20)),
    "transformer": (Transformer, (2, 3, 16, 16)),
    "shuffle": (Shuffle, (2, 3, 9, 11)),
    "windows": (Windows, (2, 3, 6, 8)),
    "waves": (Waves, (2, 3, 30)),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    """The model in evaluation mode, with an example."""
    make, shape = MODELS[name]
    return make().eval(), torch.randn(shape)
