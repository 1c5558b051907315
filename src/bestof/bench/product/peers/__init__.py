"""The peers of the matrix product: one module each."""
