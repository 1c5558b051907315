"""One timed call: its clock, its check, and what becomes of its failure."""
