"""The steps of a plan."""
