"""The devices, and the C++ code that PyTorch calls."""
