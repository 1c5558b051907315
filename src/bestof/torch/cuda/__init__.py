"""Convolutions on CUDA devices: their alternatives, and their times, for which nothing waits."""
