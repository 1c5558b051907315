"""How PyTorch programs use bestof."""
