"""What is handed to oneDNN in channels last: the families that are known to be right, no others."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bestof.torch.ops.convolution import onednn
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.direction import DIRECTIONS, Direction
from bestof.torch.ops.convolution.passes import PASSES, WEIGHT_GRADIENT
from bestof.torch.ops.convolution.problem import ConvProblem, parse_conv
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.memory_format import Layout, layout_of
from bestof.torch.ops.onednn import KNOWN, version

MAKEFILE = Path(__file__).resolve().parents[4] / "Makefile"
FORWARD, INPUT, WEIGHT = DIRECTIONS
BROKEN: list[tuple[str, str, tuple[Direction, ...]]] = [
    # 1x1 with strides, fewer channels than a block
    ("i3x224x224,k48x1x1,b32,s2", "float32", (INPUT, WEIGHT)),
    ("i8x32x32,k16x1x1,b2,s2", "float32", (INPUT, WEIGHT)),
    ("i24x32x32,k48x1x1,b2,s2x1,g4", "float32", (INPUT, WEIGHT)),
    # an output that reads padding alone
    ("i8x14x1,k8x3x1,b2,s2,p1,d2", "float32", DIRECTIONS),
    ("i64x14x2,k64x3x1,b2,p1,d1", "float32", DIRECTIONS),
    ("i64x14x2,k64x1x3,b2,p0x4,d3", "float32", DIRECTIONS),
    ("i64x1x1,k64x125x1,b2,s2,p63", "float32", DIRECTIONS),
    # bfloat16: channels or filters that are no whole blocks
    *(
        (f"i{c}x16x16,k{c}x3x3,b2,p2,d2", "bfloat16", DIRECTIONS)
        for c in (17, 20, 24, 40)
    ),
    ("i40x16x16,k64x3x3,b2,p1", "bfloat16", (WEIGHT,)),
    ("i3x16x16,k24x3x3,b2,p1", "bfloat16", (WEIGHT,)),
    ("i3x16x16,k64x3x3,b2,p2,d2", "bfloat16", (WEIGHT,)),
    ("i64x16x16,k40x3x3,b2,p1", "bfloat16", (WEIGHT,)),
    ("i64x16x16,k64x3x3,b2,p1,g4", "float32", ()),
    ("i48x16x16,k48x3x3,b2,p1,g4", "float32", (WEIGHT,)),
    ("i48x16x16,k48x3x3,b2,p1,g4", "bfloat16", DIRECTIONS),
    # bfloat16: an image no wider than the stride
    ("i64x16x2,k64x3x3,b2,s2,p1", "bfloat16", (WEIGHT,)),
    # reference code
    ("i32x64x64,k32x15x15,b1,p7", "float32", (WEIGHT,)),
]  # fmt: skip
RIGHT = [
    ("i3x224x224,k64x7x7,b8,s2,p3", "float32"),
    ("i64x56x56,k256x1x1,b8,s2", "float32"),
    ("i64x56x56,k64x3x3,b8,p1", "float32"),
    ("i64x56x56,k64x3x3,b8,p1", "bfloat16"),
    ("i3x224x224,k64x7x7,b8,s2,p3", "bfloat16"),
    ("i256x28x28,k256x3x3,b8,p2,d2", "float32"),
    ("i256x28x28,k256x3x3,b8,p2,d2", "bfloat16"),
    ("i24x28x28,k24x3x3,b8,p1,g24", "float32"),
    ("i144x28x28,k24x1x1,b8", "float32"),
]


def drawn(text: str, dtype: str) -> ConvProblem:
    return parse_conv(text)._replace(dtype=dtype, threads=1)


@pytest.mark.usefixtures("known_onednn")
@pytest.mark.parametrize(("text", "dtype", "broken"), BROKEN)
def test_broken_families_are_not_served(
    text: str, dtype: str, broken: tuple[Direction, ...]
) -> None:
    problem = drawn(text, dtype)
    served = [one for one in DIRECTIONS if onednn.serves(problem, one)]
    assert not set(served) & set(broken), served


@pytest.mark.usefixtures("known_onednn")
@pytest.mark.parametrize(("text", "dtype"), RIGHT)
def test_layers_of_networks_are_served(text: str, dtype: str) -> None:
    problem = drawn(text, dtype)
    assert all(onednn.serves(problem, one) for one in DIRECTIONS)


def test_the_oneDNN_of_the_pinned_release_is_known() -> None:  # its name
    pinned = re.search(r"^TORCH := torch==(\S+)$", MAKEFILE.read_text(), re.MULTILINE)
    assert pinned is not None
    if not torch.__version__.startswith(pinned[1]):
        pytest.skip(f"PyTorch {torch.__version__} is not the pinned release, {pinned[1]}")
    assert version() in KNOWN, "sweep this oneDNN, and see whether its faults changed"


def test_an_unknown_version_computes_only_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bestof.torch.ops.onednn.version", lambda: "9.9")
    whole = drawn("i64x56x56,k64x3x3,b8,p1", "float32")
    assert all(onednn.serves(whole, one) for one in DIRECTIONS)
    for text in ("i3x56x56,k64x3x3,b8,p1", "i64x56x56,k64x3x3,b8,p2,d2", "i64x56x56,k64x1x1,b8,s2"):
        assert not any(onednn.serves(drawn(text, "float32"), one) for one in DIRECTIONS)


def test_reading_the_image_is_what_a_float64_convolution_of_ones_shows() -> None:
    """An output reads the image where a convolution of ones by ones is not zero."""
    checked = 0
    for size in range(1, 6):
        for kernel in (1, 2, 3):
            for padding in range(4):
                for stride in (1, 2, 3):
                    for dilation in (1, 2, 3):
                        text = f"i1x{size}x9,k1x{kernel}x1,b1,s{stride}x1,p{padding}x0"
                        if size + 2 * padding < dilation * (kernel - 1) + 1:
                            continue
                        problem = parse_conv(f"{text},d{dilation}x1")
                        ones = torch.nn.functional.conv2d(
                            torch.ones(problem.input_shape, dtype=torch.float64),
                            torch.ones(problem.weight_shape, dtype=torch.float64),
                            None, problem.stride, problem.padding, problem.dilation,
                        )  # fmt: skip
                        assert onednn.reads_images(problem) == bool(ones.gt(0).all()), text
                        checked += 1
    assert checked > 300


def test_an_image_is_read_where_a_gradient_of_ones_shows() -> None:
    """A column of the image is read where the input gradient of ones by ones is not zero."""
    skipped = 0
    for kernel, padding, stride, dilation, size in product(
        (1, 2, 3), range(4), (1, 2, 3, 5), (1, 2, 3), (3, 7, 20, 21, 22)
    ):
        if size + 2 * padding < dilation * (kernel - 1) + 1:
            continue
        text = f"i1x1x{size},k1x1x{kernel},b1,s1x{stride},p0x{padding},d1x{dilation}"
        problem = parse_conv(text)
        ones = torch.nn.grad.conv2d_input(
            problem.input_shape,
            torch.ones(problem.weight_shape, dtype=torch.float64),
            torch.ones(problem.output_shape, dtype=torch.float64),
            problem.stride,
            problem.padding,
            problem.dilation,
        )
        assert onednn._is_read(problem) == bool(ones.gt(0).all()), text
        skipped += size > 2 * (dilation * (kernel - 1) + stride)
    assert skipped > 100


def test_long_lines_are_looked_at_near_their_ends() -> None:
    assert [*onednn._ends(2, 10**12, 3)] == [2, 3, 4, *(10**12 - 1 + k for k in range(3))]


class Watched:
    """PyTorch's kernels on float64, which notes what would have reached oneDNN in channels last."""

    def __init__(self) -> None:
        self.refused: list[tuple[ConvProblem, Direction]] = []
        self.handed = 0
        self.originals = PyTorchConv(self._convolution, self._backward)

    def _note(self, direction: Direction, x: Tensor, w: Tensor, *geometry: Any) -> None:
        if "channels_last" not in (layout_of(x), layout_of(w)):
            return
        stride, padding, dilation, _, _, groups = geometry
        problem = ConvProblem.of(x, w, False, stride, padding, dilation, groups)
        self.handed += 1
        if not onednn.serves(problem, direction):
            self.refused.append((problem, direction))

    def _convolution(self, x: Tensor, w: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
        self._note("forward", x, w, *geometry)
        wide = None if bias is None else bias.double()
        return torch.ops.aten.convolution(x.double(), w.double(), wide, *geometry).to(x.dtype)

    def _backward(
        self, g: Tensor, x: Tensor, w: Tensor, sizes: Any, *rest: Any
    ) -> tuple[Tensor | None, ...]:
        *geometry, mask = rest
        self._note("input gradient" if mask[0] else "weight gradient", x, w, *geometry)
        found = torch.ops.aten.convolution_backward(
            *(g.double(), x.double(), w.double(), sizes), *geometry, mask
        )
        return tuple(
            one.to(x.dtype) if wanted else None for one, wanted in zip(found, mask, strict=True)
        )


LAYOUTS: tuple[Layout, ...] = ("channels_first", "channels_last")
THIN = [
    f"i8x{h}x{w},k16x{r}x{s},b2,s{stride},p{p},d{d},g{g}"
    for h, w in ((9, 1), (2, 2), (8, 3), (1, 1))
    for r, s in ((1, 1), (3, 1), (1, 3), (3, 3))
    for stride in (1, 2)
    for p in (0, 1, 2)
    for d in (1, 2)
    for g in (1, 2, 8)
    if h + 2 * p >= d * (r - 1) + 1 and w + 2 * p >= d * (s - 1) + 1
]


@pytest.mark.usefixtures("known_onednn")
@pytest.mark.parametrize("catalogue", PASSES, ids=lambda one: one.direction)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_alternative_hands_over_what_oneDNN_may_not_serve(  # its name
    catalogue: Conv2dPass, dtype: str
) -> None:
    watched, alternatives = Watched(), 0
    for number, text in enumerate(THIN):
        layouts = LAYOUTS[number % 2], LAYOUTS[number // 2 % 2], LAYOUTS[number // 4 % 2]
        problem = drawn(text, dtype)
        problem = problem._replace(input_layout=layouts[0], weight_layout=layouts[1])
        shapes = [problem.input_shape, problem.weight_shape, problem.output_shape]
        x, w, g = (
            torch.randn(shape)
            .to(getattr(torch, dtype))
            .contiguous(
                memory_format=torch.channels_last
                if layout == "channels_last"
                else torch.contiguous_format
            )
            for shape, layout in zip(shapes, layouts, strict=True)
        )
        at = ConvProblem.of(
            *(x, w, False, problem.stride, problem.padding, problem.dilation, problem.groups),
            None if catalogue.direction == "forward" else g,
        )._replace(accuracy="relaxed")
        operands = {"forward": (x, w, None), "input gradient": (g, w), "weight gradient": (g, x)}
        for row in catalogue.applying(at):
            if row.name != "as is" and "native" not in row.name:
                row.function(watched.originals, at, *operands[catalogue.direction])
                alternatives += 1
    assert not watched.refused, watched.refused[:3]
    assert alternatives > 300 or dtype == "bfloat16"
    assert watched.handed > 20


@pytest.mark.usefixtures("known_onednn")
def test_reference_code_is_not_tried() -> None:
    """It took 10.9 s for a trial; PyTorch's own layout 0.1 s."""
    problem = drawn("i32x64x64,k32x15x15,b1,p7", "float32")
    assert "channels last" not in {row.name for row in WEIGHT_GRADIENT.applying(problem)}
    many = drawn("i32x64x64,k32x15x15,b64,p7", "float32")
    assert "channels last" in {row.name for row in WEIGHT_GRADIENT.applying(many)}
