"""Merges what was recorded into spans on one time line."""
