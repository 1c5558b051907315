"""Norms of eager calls."""
