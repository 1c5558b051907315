"""One trap a file."""
