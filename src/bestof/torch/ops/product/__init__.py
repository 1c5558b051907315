"""Matrix products of PyTorch."""
