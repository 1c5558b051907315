"""Make the ranks of a distributed job try the same alternatives and take the same decisions.

Ranks that choose by their own noisy times choose differently. They also try slow alternatives in
different steps, so that every step waits for one of them. Here all ranks follow one log.

The protocol:

1. The job has one log, in the key-value store of `torch.distributed`. Place 0, 1, 2, ... is a key.
2. A rank writes the place behind the last one that it has read, by compare_set: the first rank
   wins, and the others read what it wrote. So all ranks read the same places in the same order.
3. A place holds entries. An entry is about one problem and says `try`, `decide` or `reopen`.
4. What a rank calls, and what it decides, follows from the entries of the problem that it has read.
   Its own times only say which entry it offers next. A rank never decides alone.
5. An offer is made for the end of the log. If another rank has written about this problem first,
   the offer is dropped.
6. `try` names the alternatives of the next calls, and the optimizer step from which they are
   counted. A rank that reads late skips the calls that it has missed, and is in step again.
   Entries hold in the order of the log. The next one is offered so early that it holds when all
   tries of the present one have been made.
7. `decide` names the winner. A rank that reads it late calls the best alternative known until then.
8. `reopen` follows `decide` if a rank finds that the winner has drifted. All ranks search again.
9. No call reads or writes the log. A thread of each rank, the courier, does, once a step.
10. Nobody waits for a rank, so one that is dead, late or slow holds up nobody. A rank decides alone
    only if it cannot reach the store any more, or cannot run what was decided.

`entry`: one entry. `problem_log`: the entries of one problem. `agreed_search`: the search that
follows them. `courier`: the thread. `agreement`: what selectors ask.
"""
