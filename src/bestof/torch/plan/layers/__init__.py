"""The fused layers of a plan, as values, and their weights."""
