"""Images that are pooled, and the windows of poolings."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from bestof.kernels import transpose
from bestof.torch.ops.guards import PLAIN, passes_through

# The least size that is chosen for. PyTorch pools smaller images in less than 100 to 250
# microseconds, and a settled call costs 7.
LEAST_BYTES = 512 * 2**10
# Above this, products of arguments could exceed PyTorch's integers. PyTorch answers or refuses.
_ABSURD = 2**24


def is_chosen_for(image: Tensor, dtypes: Collection[torch.dtype]) -> bool:
    """Return whether these are large dense images of numbers in channels first."""
    return (
        type(image) in PLAIN
        and image.layout is torch.strided
        and image.dtype in dtypes
        and image.dim() == 4
        and image.nbytes >= LEAST_BYTES
        and image.is_contiguous()
        and not image.is_contiguous(memory_format=torch.channels_last)
        and not passes_through()
    )


def is_dense(gradient: Tensor, image: Tensor) -> bool:
    """Return whether a gradient is a plain one in channels first, of the type of an image."""
    return (
        type(gradient) in PLAIN
        and gradient.layout is torch.strided
        and gradient.dtype is image.dtype
        and gradient.device == image.device
        and gradient.dim() == 4
        and gradient.is_contiguous()
    )


def like_rows(image: Tensor) -> Tensor:
    """Return images in channels last of the shape of others, for kernels that read no values."""
    n, c, h, w = image.shape
    return image.new_empty_strided((n, c, h, w), (h * w * c, 1, w * c, c))


def rows_of(planes: Tensor) -> Tensor:
    """Return a copy of images in channels last, transposed by a native kernel."""
    n, c, h, w = planes.shape
    rows = torch.empty((n, h, w, c), dtype=planes.dtype, device="cpu")
    transpose(planes.detach(), (0, 2, 3, 1), out=rows)
    return rows.permute(0, 3, 1, 2)


def planes_of(rows: Tensor) -> Tensor:
    """Return a copy of images in channels first, transposed by a native kernel."""
    planes = torch.empty(rows.shape, dtype=rows.dtype, device="cpu")
    transpose(rows.permute(0, 2, 3, 1).contiguous(), (0, 3, 1, 2), out=planes)
    return planes


def words(sizes: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    """Return sizes as in `i64x32x32,k2x2,s2x2`."""
    return ",".join(name + "x".join(map(str, values)) for name, values in sizes)


def pair(given: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of both axes; () if there are neither one nor two."""
    return given * 2 if len(given) == 1 else given if len(given) == 2 else ()


def places(
    extent: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> int:
    """Return the number of windows along one axis; 0 if there are none, or if PyTorch refuses."""
    if min(kernel, stride, dilation) < 1 or max(kernel, stride, padding, dilation) > _ABSURD:
        return 0
    if not 0 <= padding <= kernel // 2:
        return 0
    window = dilation * (kernel - 1) + 1
    found = (extent + 2 * padding - window + (stride - 1 if ceil_mode else 0)) // stride + 1
    # A window of `ceil_mode` that begins behind the image and its padding is left out.
    if ceil_mode and (found - 1) * stride >= extent + padding:
        found -= 1
    return max(found, 0)
