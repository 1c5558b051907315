"""Functions that programs call by hand: PyTorch has no operators for them."""
