"""The programs of this folder import each other by name."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parents[1] / "benchmarks"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
