"""The passes of PyTorch's fused attention on the CPU."""
