"""Activations of eager calls."""
