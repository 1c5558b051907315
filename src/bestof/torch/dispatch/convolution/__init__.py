"""Answers convolutions, of which the passes of a 2-D layer are chosen together."""
