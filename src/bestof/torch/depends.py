"""What the times of our alternatives depend on."""

from __future__ import annotations

import torch

from bestof.kernels import build

DEPENDS = (f"torch=={torch.__version__}", f"kernels {build()}")
"""Evidence that was stored with another PyTorch, or another build of the kernels, is not believed."""
