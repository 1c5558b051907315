"""A fused inference plan of a model."""
