"""Benchmarks that users run: each measures and returns plain values; the command line prints them."""
