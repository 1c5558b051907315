"""The setting of a `DataLoader`, found while a training runs: worker processes, prefetch factor,
computing threads.

A trial is a part of an epoch. The user's loop gets the batches that it would have got, in the same
order. The time of the whole loop is what a setting is judged by.

`setting`: what is chosen. `climb`: what is tried next. `trial_times`: the times of one trial.
`tap`: the order of samples, shared by all trials of an epoch. `tuning`: the state of one loader.
`epoch`: the iterator of the user's loop. `interception`: where DataLoader is met.
"""
