"""The difference of two results."""

from __future__ import annotations

from typing import Any

import numpy as np


def relative_error(got: Any, expected: Any) -> float:
    """Return the largest difference of two arrays, in units of the second one's root mean square.

    NaN if either array holds one.
    """
    scale = float(np.sqrt(np.mean(np.square(expected))))
    return float(np.max(np.abs(got - expected))) / scale if scale else float(np.max(np.abs(got)))
