"""How far the pixels of a value in channels last lie apart."""

from __future__ import annotations

from torch import Tensor


def have_pitch(value: Tensor, pitch: int) -> bool:
    """Return whether pixels of (N, C, H, W) lie `pitch` elements apart.

    Their channels lie side by side. With a pitch of more than C, the value is a part of the
    channels of wider pixels.
    """
    _, channels, height, width = value.shape
    apart = height * width * pitch, 1, width * pitch, pitch
    return channels <= pitch and value.stride() == apart


def pitch_of(value: Tensor) -> int | None:
    """Return the distance of the pixels of (N, C, H, W); None if channels do not lie side by side.

    0 stands for pixels side by side.
    """
    if value.permute(0, 2, 3, 1).is_contiguous():
        return 0
    pitch = value.stride(3)
    return pitch if have_pitch(value, pitch) else None
