"""Our part in `torch.compile`: the backend "bestof"."""
