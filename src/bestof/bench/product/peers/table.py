"""The peers of the matrix product: one row each.

The module of a peer has two functions. `version()` returns what is measured. `prepare(case)`
returns the runs that the peer has for a case by name, none if it cannot run the case; see
`bestof.bench.convolution.run`.
"""

from __future__ import annotations

from bestof.bench.peer import Peer

_HERE = "bestof.bench.product.peers"

MACHINE = Peer("machine", f"{_HERE}.machine", "peak of the machine", "#222222")
"""Not a peer: the ceilings that the others are held against."""

NATIVE = Peer("native", f"{_HERE}.native", "bestof", "#0072b2", ours=True)

PEERS = (
    Peer("mkl", f"{_HERE}.mkl", "MKL", "#d55e00", ("torch",)),
    Peer("onednn", f"{_HERE}.onednn", "oneDNN", "#009e73", ("torch",)),
    Peer("openblas", f"{_HERE}.openblas", "NumPy", "#cc79a7"),
)

REFERENCES = PEERS[:2]
"""PyTorch has both: the better one of them is to be beaten."""


def peer_named(name: str) -> Peer:
    """Return the row of this name; the name must be in the table."""
    return next(row for row in (MACHINE, NATIVE, *PEERS) if row.name == name)
