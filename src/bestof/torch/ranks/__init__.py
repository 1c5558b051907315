"""Ranks of a distributed job agree on what is tried and on what is chosen.

Ranks that choose by their own noisy times choose differently, and try slow alternatives in
different steps, so that every step waits for somebody. Here all ranks follow one script for each
problem. The script is a log in the key-value store of `torch.distributed`: entry after entry, and
for each entry the rank that publishes first wins.

No call ever waits for the log. A thread, the courier, reads and writes it. An entry names the
optimizer step from which it holds, a little ahead, so that all ranks have read it by then. A rank
that is late, slow or dead holds up nobody.

`entry`: one entry of a script. `agreed_search`: the search that follows a script. `courier`: the
thread.
`agreement`: what selectors ask for such a search. `steps`: the steps of the optimizer, counted.
"""
