"""Draws models of random parts: the n-th of a seed is the same in every process."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Softplus, nn.ELU, nn.Mish, nn.Softsign, lambda: nn.LeakyReLU(0.1)),
    lambda: nn.GELU(approximate="tanh"),
)
_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 17, 24, 32)
_EXTENTS = (1, 2, 3, 5, 6, 7, 8, 9, 12, 14, 16, 20)


class Drawn(NamedTuple):
    """A model in evaluation mode, and an example input of it."""

    model: nn.Module
    example: Tensor


class _Call(nn.Module):
    """A function without parameters."""

    def __init__(self, name: str, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._name, self._function = name, function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x)

    def extra_repr(self) -> str:
        return self._name


class _Joined(nn.Module):
    """Two branches of one value, joined: added, multiplied, or side by side."""

    def __init__(self, how: str, one: nn.Module, other: nn.Module, axis: int = 1) -> None:
        super().__init__()
        self.how, self.axis, self.one, self.other = how, axis, one, other

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.one(x), self.other(x)
        if self.how == "add":
            return one + other
        return one * other if self.how == "multiply" else torch.cat((one, other), self.axis)

    def extra_repr(self) -> str:
        return self.how


class _Attention(nn.Module):
    """Attention over the tokens of a value, by PyTorch's function or by a softmax."""

    def __init__(self, size: int, heads: int, how: str) -> None:
        super().__init__()
        self.heads, self.how = heads, how
        self.all, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, size = x.shape
        parts = self.all(x).chunk(3, -1)
        q, k, v = (one.view(batch, tokens, self.heads, -1).transpose(1, 2) for one in parts)
        if self.how == "softmax":
            scores = q @ k.transpose(-2, -1) / (size // self.heads) ** 0.5
            mixed = scores.softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.how == "causal")
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, size))

    def extra_repr(self) -> str:
        return self.how


class _SelfAttention(nn.Module):
    """PyTorch's own module, with weights of attention or without."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(size, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.inner(x, x, x, need_weights=False)[0]
        return mixed


class _LastNorm(nn.Module):
    """A norm of the channels of each pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return y


class _Recurrent(nn.Module):
    """A recurrent network over the tokens of a value."""

    def __init__(self, kind: str, size: int, hidden: int) -> None:
        super().__init__()
        self.inner = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](size, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)[0]
        return y


class _Drawer:
    """Draws the parts of a model one after the other, and follows the shape of the value.

    shape: of the value behind the parts so far, an image, tokens, or rows.
    """

    def __init__(self, random: Random, shape: tuple[int, ...]) -> None:
        self.random, self.shape = random, shape

    def part(self, depth: int = 0) -> nn.Module:
        """Return the next part."""
        kinds = {4: self._of_image, 3: self._of_tokens, 2: self._of_rows}
        return kinds[len(self.shape)](depth)

    def _branch(self, depth: int, same: bool) -> nn.Module:
        """Return a few parts as a branch; the shape stays if `same`, but for its channels if not.

        Without same parts in a few attempts, the branch changes nothing.
        """
        given, axis = self.shape, 1 if len(self.shape) != 3 else 2
        for _ in range(30):
            parts = [self.part(depth + 1) for _ in range(self.random.choice((1, 1, 2, 3)))]
            found, self.shape = self.shape, given
            alike = len(found) == len(given) and all(
                one == other
                for place, (one, other) in enumerate(zip(found, given, strict=True))
                if same or place != axis
            )
            if alike:
                if not same:
                    self.shape = found
                return nn.Sequential(*parts)
        return nn.Identity()

    def _joined(self, depth: int) -> nn.Module:
        if depth > 1:
            return self._activation()
        how, axis = self.random.choice(("add", "multiply", "cat")), 1
        first = nn.Identity() if self.random.random() < 0.6 else None
        if how != "cat":
            return _Joined(how, first or self._branch(depth, True), self._branch(depth, True))
        given, axis = self.shape, 1 if len(self.shape) != 3 else 2
        one = first or self._branch(depth, False)
        size, self.shape = self.shape[axis], given
        other = self._branch(depth, False)
        total = size + self.shape[axis]
        self.shape = (*given[:axis], total, *given[axis + 1 :])
        return _Joined(how, one, other, axis)

    def _activation(self) -> nn.Module:
        return self.random.choice(_ACTIVATIONS)()

    def _arithmetic(self) -> nn.Module:
        """Return a function of single elements, or one that subtracts or divides by a mean."""
        axes = self.random.choice([(1,), (-1,), tuple(range(1, len(self.shape)))])
        number = self.random.choice((-1.0, 0.5, 1e-3, 1e-6, 2.0, 100.0))
        made: dict[str, Callable[[Tensor], Tensor]] = {
            f"x - mean{axes}": lambda x: x - x.mean(axes, keepdim=True),
            f"x * mean{axes}": lambda x: x * x.mean(axes, keepdim=True),
            f"x / (1 + norm{axes})": lambda x: x / (1 + x.square().mean(axes, keepdim=True).sqrt()),
            f"x - max{axes[0]}": lambda x: x - x.amax(axes[0], keepdim=True),
            f"x + {number}": lambda x: x + number,
            f"x * {number}": lambda x: x * number,
            "x * x": lambda x: x * x,
            "abs": torch.abs,
            "exp(-abs)": lambda x: torch.exp(-x.abs()),
            "clamp": lambda x: x.clamp(-1.5, 1.0),
            f"softmax{axes[0]}": lambda x: x.softmax(axes[0]),
            f"normalize{axes[0]}": lambda x: F.normalize(x, dim=axes[0]),
            "dropout": lambda x: F.dropout(x, 0.5, training=False),
        }
        name = self.random.choice(list(made))
        return _Call(name, made[name])

    def _heads(self, size: int) -> int:
        return self.random.choice([one for one in (1, 2, 3, 4, 8) if size % one == 0])

    def _of_image(self, depth: int) -> nn.Module:
        chosen = self.random.choices(
            ("conv", "norm", "act", "pool", "join", "arith", "squeeze", "shape", "mean", "leave"),
            (8, 4, 5, 2, 4, 2, 1, 1, 1, 1 if depth == 0 else 0),
        )[0]
        batch, channels, height, width = self.shape
        if chosen == "conv":
            return self._convolution()
        if chosen == "norm":
            return self._norm_of_image()
        if chosen == "act":
            return self._activation()
        if chosen == "join":
            return self._joined(depth)
        if chosen == "arith":
            return self._arithmetic()
        if chosen == "squeeze":
            squeezed = nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(channels, max(channels // 2, 1), 1),
                self._activation(),
                nn.Conv2d(max(channels // 2, 1), channels, 1),
                self.random.choice((nn.Sigmoid, nn.Hardsigmoid))(),
            )
            return _Joined("multiply", nn.Identity(), squeezed)
        if chosen == "pool":
            return self._pooling()
        if chosen == "shape":
            return self._reshaped()
        if chosen == "mean":
            axis = self.random.choice((1, 2, 3))
            sizes = list(self.shape)
            sizes[axis] = 1
            self.shape = tuple(sizes)
            return _Call(f"mean{axis}", lambda x: x.mean(axis, keepdim=True))
        way = self.random.choice(("flatten", "mean", "tokens"))
        if way == "tokens":
            self.shape = batch, height * width, channels
            return _Call("tokens", lambda x: x.flatten(2).transpose(1, 2))
        if way == "mean":
            self.shape = batch, channels
            return _Call("mean of pixels", lambda x: x.mean((2, 3)))
        self.shape = batch, channels * height * width
        return nn.Flatten()

    def _convolution(self) -> nn.Module:
        random = self.random
        batch, channels, height, width = self.shape
        kernel = random.choice((1, 1, 3, 3, 3, 5, 7))
        stride, dilation = random.choice((1, 1, 1, 2)), random.choice((1, 1, 1, 2))
        padding = random.choice((0, kernel // 2, kernel // 2))
        filters, groups = random.choice(_SIZES), 1
        if random.random() < 0.25:
            groups = random.choice([one for one in (2, 3, 4, 8, channels) if channels % one == 0])
            filters = groups * random.choice((1, 1, 2, 3))
        reach = dilation * (kernel - 1) + 1
        sizes = [(one + 2 * padding - reach) // stride + 1 for one in (height, width)]
        if min(height, width) + 2 * padding < reach:
            kernel, stride, padding, dilation = 1, 1, 0, 1
            sizes = [height, width]
        bias = random.random() < 0.7
        if random.random() < 0.06 and max(height, width) <= 12:
            self.shape = batch, filters, 2 * height, 2 * width
            return nn.ConvTranspose2d(channels, filters, 2, 2, groups=groups, bias=bias)
        self.shape = batch, filters, *sizes
        return nn.Conv2d(
            channels, filters, kernel, stride, padding, dilation, groups=groups, bias=bias
        )

    def _norm_of_image(self) -> nn.Module:
        batch, channels, height, width = self.shape
        kind = self.random.choice(("batch", "batch", "group", "instance", "pixel", "whole"))
        if kind == "batch":
            return nn.BatchNorm2d(channels, affine=self.random.random() < 0.8)
        if kind == "group" and batch * channels * height * width > 1:
            groups = [one for one in (1, 2, 3, 4, channels) if channels % one == 0]
            # PyTorch refuses groups of one number, of a single example.
            values = batch * channels * height * width
            groups = [one for one in groups if values > one or one == 1]
            return nn.GroupNorm(self.random.choice(groups), channels)
        if kind == "instance" and height * width > 1:
            return nn.InstanceNorm2d(channels, affine=self.random.random() < 0.5)
        return _LastNorm(channels) if kind == "pixel" else nn.LayerNorm(self.shape[1:])

    def _pooling(self) -> nn.Module:
        batch, channels, height, width = self.shape
        if self.random.random() < 0.3:
            size = self.random.choice((1, 2, 3))
            self.shape = batch, channels, size, size
            kind = self.random.choice((nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d))
            return kind(size)
        if min(height, width) < 3:
            return self._activation()
        window, stride = self.random.choice(((2, 2), (3, 2), (3, 1)))
        padding = self.random.choice((0, window // 2))
        sizes = [(one + 2 * padding - window) // stride + 1 for one in (height, width)]
        self.shape = batch, channels, *sizes
        return self.random.choice((nn.MaxPool2d, nn.AvgPool2d))(window, stride, padding)

    def _reshaped(self) -> nn.Module:
        batch, channels, height, width = self.shape
        if channels % 4 == 0 and self.random.random() < 0.3:
            self.shape = batch, channels // 4, 2 * height, 2 * width
            return nn.PixelShuffle(2)
        if channels % 2 == 0 and self.random.random() < 0.3:
            return nn.ChannelShuffle(2)
        if max(height, width) <= 10 and self.random.random() < 0.5:
            self.shape = batch, channels, 2 * height, 2 * width
            return nn.Upsample(scale_factor=2.0, mode=self.random.choice(("nearest", "bilinear")))
        if self.random.random() < 0.5:
            self.shape = batch, channels, height + 2, width + 1
            return nn.ZeroPad2d((0, 1, 1, 1))
        self.shape = batch, channels, width, height
        return _Call("transposed", lambda x: x.transpose(2, 3))

    def _of_tokens(self, depth: int) -> nn.Module:
        chosen = self.random.choices(
            ("linear", "norm", "act", "join", "arith", "attention", "recurrent", "gate", "leave"),
            (6, 4, 4, 4, 2, 5, 1, 2, 1 if depth == 0 else 0),
        )[0]
        batch, tokens, size = self.shape
        if chosen == "linear":
            return self._linear()
        if chosen == "norm":
            return self.random.choice((nn.LayerNorm, nn.RMSNorm))(size)
        if chosen == "act":
            return self._activation()
        if chosen == "join":
            return self._joined(depth)
        if chosen == "arith":
            return self._arithmetic()
        if chosen == "gate":
            inner = self.random.choice(_SIZES)
            gate = nn.Sequential(nn.Linear(size, inner), self._activation())
            return nn.Sequential(
                _Joined("multiply", gate, nn.Linear(size, inner)), nn.Linear(inner, size)
            )
        if chosen == "recurrent" and depth == 0:
            hidden = self.random.choice((3, 4, 8))
            self.shape = batch, tokens, hidden
            return _Recurrent(self.random.choice(("lstm", "gru")), size, hidden)
        if chosen in ("attention", "recurrent"):
            heads = self._heads(size)
            how = self.random.choice(("all", "causal", "softmax", "module", "encoder"))
            if how == "module":
                return _SelfAttention(size, heads)
            if how == "encoder":
                first = self.random.random() < 0.5
                return nn.TransformerEncoderLayer(
                    size, heads, 2 * size, batch_first=True, norm_first=first
                )
            return _Attention(size, heads, how)
        if self.random.random() < 0.5:
            self.shape = batch, size
            place = self.random.choice((0, -1, None))
            if place is None:
                return _Call("mean of tokens", lambda x: x.mean(1))
            return _Call(f"token {place}", lambda x: x[:, place])
        self.shape = batch, size, tokens, 1
        return _Call("image", lambda x: x.transpose(1, 2).unsqueeze(3))

    def _linear(self) -> nn.Module:
        size = self.random.choice(_SIZES)
        given = self.shape[-1]
        self.shape = (*self.shape[:-1], size)
        return nn.Linear(given, size, bias=self.random.random() < 0.8)

    def _of_rows(self, depth: int) -> nn.Module:
        chosen = self.random.choices(
            ("linear", "norm", "act", "join", "arith", "leave"),
            (6, 3, 4, 3, 2, 1 if depth == 0 else 0),
        )[0]
        batch, size = self.shape
        if chosen == "linear":
            return self._linear()
        if chosen == "norm":
            return self.random.choice((nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d))(size)
        if chosen == "act":
            return self._activation()
        if chosen == "join":
            return self._joined(depth)
        if chosen == "arith" or size % 4:
            return self._arithmetic()
        self.shape = batch, size // 4, 4
        return _Call("tokens of rows", lambda x: x.reshape(x.shape[0], -1, 4))


def model(seed: int, index: int) -> Drawn:
    """Return a model of 1 to 12 parts, and its example input, of float32 or bfloat16."""
    random = Random(f"model {seed} {index}")
    generator = torch.Generator().manual_seed(random.randrange(2**40))
    torch.manual_seed(random.randrange(2**40))
    batch = random.choice((1, 1, 2, 3, 5))
    shape: tuple[int, ...] = (batch, random.choice(_SIZES), *random.choices(_EXTENTS, k=2))
    kind = random.random()
    if kind < 0.35:
        shape = batch, random.choice(_EXTENTS), random.choice(_SIZES)
    elif kind < 0.45:
        shape = batch, random.choice(_SIZES)
    drawer = _Drawer(random, shape)
    parts = nn.Sequential(*(drawer.part() for _ in range(random.randrange(1, 13))))
    _scale(parts, random, generator)
    example = torch.randn(shape, generator=generator) * random.choice((1.0, 1.0, 1.0, 0.05, 30.0))
    if random.random() < 0.1:
        example += random.choice((1.0, 10.0, 300.0))
    if random.random() < 0.1:
        example = example.relu()
    if len(shape) == 4 and random.random() < 0.2:
        example = example.contiguous(memory_format=torch.channels_last)
    dtype = torch.bfloat16 if random.random() < 0.25 else torch.float32
    return Drawn(parts.eval().to(dtype), example.to(dtype))


def _scale(parts: nn.Module, random: Random, generator: torch.Generator) -> None:
    """Give norms statistics and scales of their own, and some layers large or small weights."""
    usual = random.random() < 0.4
    for part in parts.modules():
        for name, value in [*part.named_parameters(recurse=False)]:
            is_norm = "Norm" in type(part).__name__
            with torch.no_grad():
                if is_norm and random.random() < 0.7:
                    noise = torch.randn(value.shape, generator=generator)
                    value.copy_(0.3 * noise + (1.0 if name == "weight" else 0.0))
                if not usual and random.random() < 0.3:
                    value.mul_(10 ** random.uniform(-3, 2))
                if random.random() < 0.05:
                    value.zero_()
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            assert part.running_mean is not None
            assert part.running_var is not None
            part.running_mean.normal_(0, random.choice((0.1, 1.0, 10.0)), generator=generator)
            drawn = torch.rand(part.running_var.shape, generator=generator)
            part.running_var.copy_(random.choice((1e-3, 1.0, 1.0, 30.0)) * (0.1 + drawn))
