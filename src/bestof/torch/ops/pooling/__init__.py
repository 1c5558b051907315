"""Poolings of images."""
