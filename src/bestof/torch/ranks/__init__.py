"""Makes the ranks of a distributed job agree on what is tried and chosen.

If ranks chose by their own noisy times, they would choose differently. They would also try slow
alternatives in different steps, so that every step would wait for some rank. Here all ranks follow
one script for each problem. The script is a log in the key-value store of `torch.distributed`. For
each entry, the rank that publishes first wins.

No call waits for the log. A thread, the courier, reads and writes it. An entry names the optimizer
step from which it holds. This step lies a little ahead, so that all ranks have read the entry by
then. A late, slow or dead rank delays no other.

- `entry`: one entry of a script.
- `agreed_search`: the search that follows a script.
- `courier`: the thread.
- `agreement`: where selectors get such a search.
- `steps`: counts the steps of the optimizer.
"""
