"""Sets the settings of a recipe in this process, after the program has imported torch."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import bestof.torch as integration
from bestof.recipe.settings import Settings
from bestof.torch.process.data_loading.interception import follow
from bestof.torch.process.data_loading.tuning import Bounds
from bestof.torch.process.freed_memory import keep_freed
from bestof.torch.process.layout.interception import tune_layouts

FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""The optimizers with a fused form on the CPU that computes the same."""


def apply(settings: Settings) -> None:
    """Make the settings hold for the rest of the program."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    if settings.kernels:
        integration.set_config(
            {
                "kernel": {
                    "accuracy": settings.accuracy,
                    "product": settings.products,
                    "attention": settings.attention,
                },
                "memory": {"keep_freed": settings.keep_freed},
                "threads": {"fit": settings.threads is None},
            }
        )
    elif settings.keep_freed:
        keep_freed()
    if settings.channels_last:
        tune_layouts(True, fixed=True)
    if settings.workers is not None:
        follow(Bounds(fixed=settings.workers))
    if settings.fused_optimizer:
        register_optimizer_step_pre_hook(_fuse)


def _fuse(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if type(optimizer) not in FUSED:
        return
    for group in optimizer.param_groups:
        if group.get("fused") is None and group.get("foreach") is None and fusible(group):
            group["fused"] = True
            group["fused by bestof"] = True
        elif group.get("fused by bestof") and not fusible(group):
            group["fused"] = None


def fusible(group: dict[str, Any]) -> bool:
    """Return whether PyTorch's fused form takes this group of parameters on the CPU.

    It reads parameters and gradients in the order of memory, so their strides must be alike.
    """
    return not group.get("differentiable") and all(
        one.device.type == "cpu"
        and one.is_floating_point()
        and (one.grad is None or (not one.grad.is_sparse and one.grad.stride() == one.stride()))
        for one in group["params"]
    )
