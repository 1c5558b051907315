"""Whole engines that run models: each is one module and one row of `table.py`."""
