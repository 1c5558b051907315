"""How far two results are apart."""

from __future__ import annotations

from typing import Any

import numpy as np


def relative_error(got: Any, expected: Any) -> float:
    """The largest difference of two arrays, in units of the root mean square of the second; NaN where one has NaN."""
    scale = float(np.sqrt(np.mean(np.square(expected))))
    return float(np.max(np.abs(got - expected))) / scale if scale else float(np.max(np.abs(got)))
