"""The algorithms that can run a fused layer of a plan: one file for each kind, one table."""
