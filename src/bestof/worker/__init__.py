"""Processes that answer orders: the parent's side and the loop of the child."""
