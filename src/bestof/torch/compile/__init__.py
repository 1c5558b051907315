"""The backend "bestof" of `torch.compile`."""
