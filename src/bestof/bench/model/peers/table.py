"""The peers: one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bestof.errors import InvalidArgument

# Largest difference from PyTorch's logits, in units of their root mean square. float32 networks of up to 150 layers
# differ by 1e-5 to 1e-4 among the peers that sum in another order, or by Winograd's algorithms; a wrong border, a lost
# bias or a bfloat16 inside is seen at 1e-2.
FLOAT32 = 2e-3
# bfloat16 has 8 bits: half a unit in the last place is 2^-9, which errs about as sqrt(layers) times it at random. In a
# network that magnifies it, as much is allowed as PyTorch's own autocast loses, and half as much more: of a ResNet50 of
# random weights that is 0.12 by the root mean square, and ours loses 0.10.
RELAXED = 5e-2
OVER_AUTOCAST = 1.5
# TF32 rounds operands to 11 bits.
TF32 = 1e-2

_ANYWHERE = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to run a model. Its `module` has `prepare(model, example, threads, **options)`, and, where it `trains`,
    `prepare_training(model, step, threads, **options)`; both give a Prepared.

    `devices`: where it can. One that `rounds` to bfloat16 inside may err as PyTorch's autocast does. `needs` are the
    modules without any of which the peer is missing; `ours` is compared with the others.
    """

    name: str
    module: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ours: bool = False
    needs: tuple[str, ...] = ()
    trains: bool = False
    tolerance: float = FLOAT32
    devices: tuple[str, ...] = ("cpu",)
    rounds: bool = False

    def tolerance_on(self, device: str) -> float:
        """The largest difference there: on CUDA PyTorch itself computes convolutions in TF32."""
        return self.tolerance if device == "cpu" else max(self.tolerance, TF32)

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of `needs` that cannot be imported here."""
        return tuple(name for name in self.needs if find_spec(name) is None)

    def load(self) -> Any:
        """Its module."""
        return import_module(self.module)


_HERE = "bestof.bench.model.peers"

PEERS = (
    Peer(
        "eager", f"{_HERE}.eager", "PyTorch eager, channels first", trains=True, devices=_ANYWHERE
    ),
    Peer(
        "eager-last",
        f"{_HERE}.eager",
        "PyTorch eager, channels last",
        options={"channels_last": True},
        trains=True,
        devices=_ANYWHERE,
    ),
    Peer("compile", f"{_HERE}.compiled", "torch.compile", trains=True, devices=_ANYWHERE),
    Peer("openvino", f"{_HERE}.openvino", "OpenVINO", needs=("openvino",)),
    Peer(
        "onnxruntime",
        f"{_HERE}.onnxruntime",
        "ONNX Runtime",
        needs=("onnx", "onnxscript", "onnxruntime"),
    ),
    Peer("ncnn", f"{_HERE}.ncnn", "ncnn", needs=("ncnn", "pnnx")),
    Peer("enable", f"{_HERE}.enabled", "bestof enable", ours=True, trains=True, devices=_ANYWHERE),
    Peer(
        "enable-last",
        f"{_HERE}.enabled",
        "bestof enable, channels last",
        options={"channels_last": True},
        ours=True,
        trains=True,
        devices=_ANYWHERE,
    ),
    Peer("optimize", f"{_HERE}.optimized", "bestof optimize", ours=True),
    Peer(
        "optimize-relaxed",
        f"{_HERE}.optimized",
        "bestof optimize, relaxed",
        options={"accuracy": "relaxed"},
        ours=True,
        tolerance=RELAXED,
        rounds=True,
    ),
)

REFERENCE = PEERS[0]
"""Every result is compared with this one's."""


def find_peers(names: tuple[str, ...]) -> tuple[Peer, ...]:
    """The rows of these names, in the table's order. Raises InvalidArgument."""
    known = {peer.name for peer in PEERS}
    for name in names:
        if name not in known:
            raise InvalidArgument(
                f"there is no peer {name!r}; the peers are {', '.join(peer.name for peer in PEERS)}"
            )
    return tuple(peer for peer in PEERS if peer.name in names)
