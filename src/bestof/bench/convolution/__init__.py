"""The native convolutions beside those of others: each side in a process of its own, called in turn."""
