"""Passes through the stages of a group, and the winners that answer them."""
