"""Finds how this machine trains a script, or serves a plan, fastest.

Training, by ranks and threads:
- `cores`: the cores that the process may use, in their NUMA nodes.
- `split`: a number of ranks and threads, and the cores of each rank.
- `measure`: runs each split under PyTorch's elastic launcher, and compares the fastest in turn.
- `table`: the measured splits with their efficiency.
- `environment`: environment variables that may help; `environment_search` tries them in turn.

Serving, by instances, threads and batch:
- `plan_inputs`: the batches of a plan file.
- `instances`: the processes of one setting; `instance` is what each of them runs.
- `serving`: measures each setting under a bound of the latency.
"""
