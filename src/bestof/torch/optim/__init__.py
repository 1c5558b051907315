"""Optimizers that PyTorch does not have."""

from bestof.torch.optim.lamb import LAMB

__all__ = ["LAMB"]
