"""Matrix products of PyTorch, each chosen among alternatives.

`override` puts them into PyTorch's dispatcher, `products` chooses, and `table` has the rows.
"""
