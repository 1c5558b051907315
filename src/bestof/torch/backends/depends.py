"""The version of all evidence on PyTorch operations."""

from __future__ import annotations

import torch

from bestof.kernels import build, isa

DEPENDS = (f"torch=={torch.__version__}", f"kernels {build()} {isa()}")
"""The texts that times depend on: PyTorch, the build of the kernels, the instruction set."""
