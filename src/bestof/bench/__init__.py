"""Benchmarks that users run: each measures and returns plain values.

`bestof bench` prints them, through the tables and pictures of `bestof.view.bench`.

- `model/`: whole models, and `convolution/`: single convolutions, by bestof and by other libraries.
  Both have a folder `peers/` with one module a peer and one table, `peers/table.py`.
- `peer.py`, `process.py`, `worker.py`: what a peer is, and how it runs in a process of its own.
- `kept.py`: measurements in a file, so that a long table can be measured in parts.
- `reach.py`: a figure that was promised, beside the one that was measured.
- `machine.py`: the two ceilings of this machine, multiply-adds and memory.
- `dispatch.py`, `torch_dispatch.py`, `transpose.py`: benchmarks without peers.
"""
