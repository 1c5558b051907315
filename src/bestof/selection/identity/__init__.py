"""What evidence belongs to: the problem, the code of an alternative, the host."""
