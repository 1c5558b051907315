"""Replace operators of a graph by operations of the plan."""
