"""One timed call: its clock, its check, and the circumstances of its failure."""
