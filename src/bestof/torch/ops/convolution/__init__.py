"""Convolutions of volumes."""
