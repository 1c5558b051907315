"""The convolution peers: one row each.

The module of a peer has two functions. `version()` returns what is measured. `prepare(case)`
returns the runs that the peer has for a case by name, none if it cannot run the case; see `run.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from bestof.bench.peer import Peer

_HERE = "bestof.bench.convolution.peers"
_ALL = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class ConvolutionPeer(Peer):
    """A library that runs convolutions. `dtypes`: the cases that it takes part in."""

    dtypes: tuple[str, ...] = _ALL


MACHINE = ConvolutionPeer("machine", f"{_HERE}.machine", "ceilings of the machine", "#222222")
"""Not a peer: the ceilings that the others are held against."""

NATIVE = ConvolutionPeer(
    "native", f"{_HERE}.native", "bestof, the fastest algorithm", "#0072b2", ours=True
)

# Colours that are told apart in grey and by the colour-blind.
PEERS = (
    ConvolutionPeer("onednn", f"{_HERE}.onednn", "oneDNN", "#d55e00", ("torch",)),
    ConvolutionPeer(
        "onednn_bf16",
        f"{_HERE}.onednn_bf16",
        "oneDNN bf16",
        "#009e73",
        ("torch",),
        dtypes=("bfloat16",),
    ),
    ConvolutionPeer("ncnn", f"{_HERE}.ncnn", "ncnn", "#cc79a7", ("ncnn",)),
)

REFERENCE = PEERS[0]
"""The promises are ratios to this peer's time."""


def peer_named(name: str) -> ConvolutionPeer:
    """Return the row of this name; the name must be in the table."""
    return next(row for row in (MACHINE, NATIVE, *PEERS) if row.name == name)
