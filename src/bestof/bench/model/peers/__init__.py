"""The model peers: one module and one row of `table.py` each."""
