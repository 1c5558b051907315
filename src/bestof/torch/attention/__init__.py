"""Attention of PyTorch on the CPU: chooses between PyTorch's own kernel and the native one."""
