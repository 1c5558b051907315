"""Finds the setting of a `DataLoader` while a training runs.

A setting is the number of worker processes, the prefetch factor, and the number of computing
threads. A trial is a part of an epoch with one setting. The user's loop gets the same batches in
the same order as without bestof. A setting is judged by the time of the whole loop.

- `setting`: the three numbers.
- `hill_climbing`: chooses what to try next.
- `trial_times`: the times of one trial.
- `sample_order`: the order of samples, which all trials of an epoch share.
- `tuning`: the state of one loader.
- `epoch`: the iterator of the user's loop.
- `interception`: the methods of DataLoader that bestof replaces.
"""
