"""Convolutions on CUDA devices: their alternatives, and their times. Nothing waits for a time."""
