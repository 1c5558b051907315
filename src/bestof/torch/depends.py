"""What the times of our alternatives depend on."""

from __future__ import annotations

import torch

from bestof.kernels import build, isa

DEPENDS = (f"torch=={torch.__version__}", f"kernels {build()} {isa()}")
"""Evidence that was stored with another PyTorch, another build of the kernels or another instruction set is not
believed."""
