"""The convolution peers: one module and one row of the table each."""
