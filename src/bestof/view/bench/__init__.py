"""Tables and pictures of benchmarks: one module for each benchmark, drawn from its plain values."""
