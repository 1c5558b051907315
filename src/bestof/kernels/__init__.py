"""Native CPU kernels with a NumPy face: arrays in, arrays out."""

from __future__ import annotations

from bestof.kernels.transpose import transpose, transpose_algorithms

__all__ = ["transpose", "transpose_algorithms"]
