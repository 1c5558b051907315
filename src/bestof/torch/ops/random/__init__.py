"""Random numbers of eager calls."""
