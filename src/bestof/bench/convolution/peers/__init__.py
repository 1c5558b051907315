"""The convolution peers: one module and one row of `table.py` each."""
