"""The layers that are measured with peers, and the promised ratio to oneDNN for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bestof.bench.convolution.case import Case
from bestof.errors import InvalidArgument
from bestof.torch.ops.convolution.notation import EXPECTED, pair, parse_fields


@dataclass(frozen=True, slots=True)
class Layers:
    """A group of layers, each in notation without the batch.

    `reach` is the promised ratio of each layer, by pass and batch; `median_reach` that of the
    median over the group.
    """

    name: str
    title: str
    notations: tuple[str, ...]
    reach: Mapping[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)
    median_reach: Mapping[tuple[str, int], float] = field(default_factory=dict)


def parse_case(text: str) -> Case:
    """Return the forward case that a notation such as i64x56x56,k64x3x3,b8,p1 names.

    Raises InvalidArgument for any other text.
    """
    fields = parse_fields(text)
    (c, h, w), (k, r, s), (n,), (g,) = fields["i"], fields["k"], fields["b"], fields["g"]
    stride, padding, dilation = ((fields[letter][0], fields[letter][1]) for letter in "spd")
    notation = f"i{c}x{h}x{w},k{k}x{r}x{s},s{pair(stride)},p{pair(padding)},d{pair(dilation)},g{g}"
    case = Case(notation, n, c, h, w, k, r, s, stride, padding, dilation, g)
    if c % g or k % g or min(case.output_size) < 1:
        raise InvalidArgument(
            f"convolution {text!r}: groups or kernel do not fit the image; expected {EXPECTED}"
        )
    return case


def _vgg(channels: int, extent: int) -> str:
    return f"i{channels}x{extent}x{extent},k{channels}x3x3,p1"


def _square(channels: int, filters: int, extent: int, kernel: int, stride: int) -> str:
    return f"i{channels}x{extent}x{extent},k{filters}x{kernel}x{kernel},s{stride},p{kernel // 2}"


LAYERS = (
    Layers(
        "vgg16",
        "3x3, stride 1, of VGG16",
        tuple(
            _vgg(c, e)
            for c, e in ((64, 224), (128, 112), (256, 56), (512, 28), (512, 14), (512, 7))
        ),
        reach={
            ("forward", 8): (3.5, 3.8, 3.5, 3.3, 2.5, 1.7),
            ("forward", 1): (3.3, 3.8, 3.2, 3.0, 2.2, 1.7),
        },
        median_reach={("input gradient", 8): 3.0, ("weight gradient", 8): 2.3},
    ),
    Layers(
        "pointwise",
        "1x1 of ResNet50",
        tuple(
            _square(c, k, e, 1, s)
            for c, k, e, s in (
                (64, 64, 56, 1),
                (64, 256, 56, 1),
                (256, 64, 56, 1),
                (256, 128, 56, 1),
                (128, 512, 28, 1),
                (512, 128, 28, 1),
                (256, 512, 56, 2),
                (256, 1024, 14, 1),
                (1024, 256, 14, 1),
                (512, 1024, 28, 2),
                (512, 2048, 7, 1),
                (2048, 512, 7, 1),
            )
        ),
        median_reach={("forward", 8): 1.1, ("forward", 1): 1.1},
    ),
    Layers(
        "strided",
        "3x3, stride 2, of ResNet",
        tuple(
            _square(c, k, e, 3, 2)
            for c, k, e in (
                (64, 128, 56),
                (128, 128, 56),
                (128, 256, 28),
                (256, 256, 28),
                (256, 512, 14),
                (512, 512, 14),
            )
        ),
        median_reach={("forward", 8): 1.05, ("forward", 1): 1.05},
    ),
    Layers(
        "stem",
        "three input channels",
        ("i3x224x224,k64x7x7,s2,p3", "i3x224x224,k64x3x3,p1", "i3x224x224,k32x3x3,s2,p1"),
    ),
)

# One layer of each kind. All are small enough to be measured within a minute.
QUICK = (
    "i128x56x56,k128x3x3,p1",
    "i512x14x14,k512x3x3,p1",
    "i256x14x14,k1024x1x1",
    "i128x28x28,k256x3x3,s2,p1",
)

# The promised scaling from 1 to 2 threads, and the batch that it is promised for.
SCALING_REACH, SCALING_BATCH = 1.8, 8


def group_titles() -> dict[str, str]:
    """Return the title of its group for the full notation of every layer."""
    return {
        parse_case(notation).notation: group.title
        for group in LAYERS
        for notation in group.notations
    }
