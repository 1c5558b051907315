"""PyTorch programs made faster without a change: convolutions chosen among alternatives, per layer and per pass."""

from bestof.torch.enable import disable, enable, enabled, set_config
from bestof.torch.summary import PassSummary, Summary, summary

__all__ = ["PassSummary", "Summary", "disable", "enable", "enabled", "set_config", "summary"]
