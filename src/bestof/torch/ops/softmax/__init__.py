"""Softmax of eager calls."""
