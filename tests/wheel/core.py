"""Runs the core of the tests on the installed wheel: the engine and the kernels, without PyTorch.

python tests/wheel/core.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
CORE = (
    "unit/selection",
    "unit/kernels",
    "contract/hot_path",
    "contract/test_kernels.py",
    "contract/test_policy.py",
    "contract/test_selector.py",
    "contract/test_selector_passes.py",
    "numerics/test_convolution.py",
    "numerics/test_matmul.py",
    "numerics/test_attention.py",
)
NEED_MORE = (  # than the core: PyTorch, psycopg
    "unit/selection/store/test_postgresql_access.py",
    "unit/selection/test_changed_arguments.py",
    "unit/selection/test_circumstances.py",
    "unit/selection/test_guard.py",
)


def main() -> int:
    """Return pytest's exit status."""
    # Without PyTorch, `import torch` would find the folder tests/contract/torch.
    sys.modules["torch"] = None  # type: ignore[assignment]  # makes the import fail
    files = [str(TESTS / name) for name in CORE]
    ignored = [f"--ignore={TESTS / name}" for name in NEED_MORE]
    return pytest.main(
        ["-q", "-r", "fE", "-p", "no:cacheprovider", "-m", "not long", *ignored, *files]
    )


if __name__ == "__main__":
    sys.exit(main())
