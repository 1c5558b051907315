"""Picks, while a program runs, the fastest of several implementations for every problem size."""
