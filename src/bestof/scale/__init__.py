"""Finds how many ranks of how many threads train a script fastest on this machine.

- `cores`: the cores that the process may use, in their NUMA nodes.
- `split`: a number of ranks and threads, and the cores of each rank.
- `measure`: runs each split under PyTorch's elastic launcher, and compares the fastest in turn.
- `table`: the measured splits with their efficiency.
"""
