"""Ways to run a model: ours, PyTorch's own and other libraries'; one a file, one row of the table each."""
