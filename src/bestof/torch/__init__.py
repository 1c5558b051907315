"""Chooses the kernels of PyTorch programs while they run, and plans models for inference."""

from bestof.torch import optim
from bestof.torch.enable import disable, enable, enabled, set_config
from bestof.torch.functional.focal_loss import sigmoid_focal_loss
from bestof.torch.functional.frozen_batch_norm import frozen_batch_norm
from bestof.torch.plan.lengths import Lengths
from bestof.torch.plan.optimize import load, optimize
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.process.data_loading.tune import tune_dataloader
from bestof.torch.process.steps import step
from bestof.torch.rows.register import register, unregister
from bestof.torch.summary import PassSummary, Summary, summary
from bestof_autoload import resume

__all__ = [
    "Lengths",
    "OptimizedModel",
    "PassSummary",
    "Summary",
    "disable",
    "enable",
    "enabled",
    "frozen_batch_norm",
    "load",
    "optim",
    "optimize",
    "register",
    "set_config",
    "sigmoid_focal_loss",
    "step",
    "summary",
    "tune_dataloader",
    "unregister",
]

resume()  # this import may have been the first one of PyTorch, in a process with BESTOF=on
