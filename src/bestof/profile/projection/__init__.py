"""Replays the problems of a profile, and projects how fast they could be."""
