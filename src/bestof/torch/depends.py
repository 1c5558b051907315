"""What the times of all alternatives depend on."""

from __future__ import annotations

import torch

from bestof.kernels import build, isa

DEPENDS = (f"torch=={torch.__version__}", f"kernels {build()} {isa()}")
"""The version of all evidence: PyTorch, the build of the kernels and the instruction set."""
