"""Examines a machine and a program: which known traps they are in, and what each costs here.

A trap is one file in `traps/` and one row in `table.py`. `Examination` runs in the program's
process. It lets the program's own steps run with and without the cure of each trap, in turn.
"""
