"""Copies of images into another memory format."""
