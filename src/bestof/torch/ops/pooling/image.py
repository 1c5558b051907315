"""Images that are pooled, and the windows of poolings."""

from __future__ import annotations

import torch
from torch import Tensor

# The least size that is chosen for. PyTorch pools smaller images in less than 100 to 250
# microseconds, and a settled call costs 7.
LEAST_BYTES = 512 * 2**10
# Above this, products of arguments could exceed PyTorch's integers. PyTorch answers or refuses.
_ABSURD = 2**24
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


def dtype_of(image: Tensor) -> str | None:
    """Return the dtype of an image that bestof chooses for; None for any other.

    bestof chooses for large dense images of numbers in channels first.
    """
    if (
        type(image) not in _PLAIN
        or image.layout is not torch.strided
        or image.dim() != 4
        or image.nbytes < LEAST_BYTES
        or not image.is_contiguous()
        or image.is_contiguous(memory_format=torch.channels_last)
        or torch._C._get_tracing_state() is not None
    ):
        return None
    return _DTYPES.get(image.dtype)


def words(sizes: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    """Return sizes as in `i64x32x32,k2x2,s2x2`."""
    return ",".join(name + "x".join(map(str, values)) for name, values in sizes)


def pair(given: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of both axes; () if there are neither one nor two."""
    return given * 2 if len(given) == 1 else given if len(given) == 2 else ()


def is_valid_axis(
    extent: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> bool:
    """Return whether PyTorch accepts the arguments along one axis, and the result is not empty."""
    if min(kernel, stride, dilation) < 1 or max(kernel, stride, padding, dilation) > _ABSURD:
        return False
    if not 0 <= padding <= kernel // 2:
        return False
    window = dilation * (kernel - 1) + 1
    places = (extent + 2 * padding - window + (stride - 1 if ceil_mode else 0)) // stride + 1
    # A window of `ceil_mode` that begins behind the image and its padding is left out.
    if ceil_mode and (places - 1) * stride >= extent + padding:
        places -= 1
    return places >= 1
