"""PyTorch programs made faster without a change: convolutions chosen among alternatives, per layer and per pass."""

from bestof.torch.enable import disable, enable, enabled

__all__ = ["disable", "enable", "enabled"]
