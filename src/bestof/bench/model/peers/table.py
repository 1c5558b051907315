"""The model peers: one row each.

The module of a peer has `prepare(model, example, threads, **options)`, and if it trains,
`prepare_training(model, step, threads, **options)`. Both return a Prepared; see `prepared.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bestof.bench.model.job import DTYPES, Job
from bestof.bench.peer import Peer, find_rows
from bestof.torch.engines.table import ENGINES
from bestof.torch.engines.tolerance import FLOAT32, RELAXED

# TF32 rounds operands to 11 bits.
TF32 = 1e-2

_ANYWHERE = ("cpu", "cuda")
_FLOAT32 = ("float32",)


@dataclass(frozen=True, slots=True)
class ModelPeer(Peer):
    """A way to run models.

    `trains`: whether the module has `prepare_training`. `tolerance`: the largest difference from
    PyTorch's results that is allowed. `devices`: where the peer runs. `dtypes`: of the models that
    it runs. A peer that `rounds` to bfloat16 inside may differ as much as PyTorch's autocast does;
    so may every peer on a model of bfloat16, whose results are compared with those in float32.
    `static`: it computes all convolutions by one algorithm, as the BestOf paper compares.
    """

    trains: bool = False
    tolerance: float = FLOAT32
    devices: tuple[str, ...] = ("cpu",)
    dtypes: tuple[str, ...] = DTYPES
    rounds: bool = False
    static: bool = False

    def runs(self, job: Job) -> bool:
        """Return whether the peer can run a job."""
        trains = self.trains or not job.train
        return trains and job.device in self.devices and job.dtype in self.dtypes

    def tolerance_on(self, device: str) -> float:
        """Return the largest difference there: on CUDA PyTorch itself computes convolutions in
        TF32.
        """
        return self.tolerance if device == "cpu" else max(self.tolerance, TF32)


_HERE = "bestof.bench.model.peers"


def _static(name: str, row: str, words: str, colour: str) -> ModelPeer:
    """Return the peer that computes all convolutions by one row, where it can."""
    return ModelPeer(
        name,
        f"{_HERE}.enabled",
        f"{words} for all layers",
        colour,
        options={"row": row},
        ours=True,
        trains=True,
        dtypes=_FLOAT32,
        static=True,
    )


def _engine(
    name: str,
    engine: str,
    label: str,
    colour: str,
    *,
    trains: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
) -> ModelPeer:
    """Return the peer that is an engine of `optimize(..., engines=)`, too."""
    (row,) = (one for one in ENGINES if one.name == engine)
    return ModelPeer(
        name,
        f"{_HERE}.{'compiled' if trains else 'engine'}",
        label,
        colour,
        row.needs,
        options={"engine": engine},
        trains=trains,
        devices=_ANYWHERE if trains else ("cpu",),
        dtypes=dtypes,
    )


# One colour a peer, the same in every picture: greys and cool ones for the others, warm ones for
# bestof.
PEERS = (
    ModelPeer(
        "eager",
        f"{_HERE}.eager",
        "PyTorch eager, channels first",
        "#9aa0a6",
        trains=True,
        devices=_ANYWHERE,
    ),
    ModelPeer(
        "eager-last",
        f"{_HERE}.eager",
        "PyTorch eager, channels last",
        "#c4c8cc",
        options={"channels_last": True},
        trains=True,
        devices=_ANYWHERE,
    ),
    _engine("compile", "torch.compile", "torch.compile", "#5f7a99", trains=True),
    _engine(
        "compile-max",
        "torch.compile max-autotune",
        "torch.compile, max-autotune",
        "#3d5673",
        trains=True,
    ),
    _engine("zentorch", "zentorch", "zentorch", "#4f8f8b"),
    _engine("openvino", "openvino", "OpenVINO", "#3b6fb6"),
    _engine("onnxruntime", "onnxruntime", "ONNX Runtime", "#5aa9c7", dtypes=_FLOAT32),
    ModelPeer("ncnn", f"{_HERE}.ncnn", "ncnn", "#6a5fa8", ("ncnn", "pnnx"), dtypes=_FLOAT32),
    ModelPeer(
        "enable",
        f"{_HERE}.enabled",
        "bestof enable",
        "#f2a541",
        ours=True,
        trains=True,
        devices=_ANYWHERE,
    ),
    ModelPeer(
        "enable-last",
        f"{_HERE}.enabled",
        "bestof enable, channels last",
        "#f7cf8b",
        options={"channels_last": True},
        ours=True,
        trains=True,
        devices=_ANYWHERE,
    ),
    ModelPeer("optimize", f"{_HERE}.optimized", "bestof optimize", "#d9482b", ours=True),
    ModelPeer(
        "optimize-relaxed",
        f"{_HERE}.optimized",
        "bestof optimize, relaxed",
        "#8f2314",
        options={"accuracy": "relaxed"},
        ours=True,
        tolerance=RELAXED,
        dtypes=_FLOAT32,
        rounds=True,
    ),
    _static("static-im2row", "im2row", "im2row + GEMM", "#7f8c5a"),
    _static("static-im2col", "im2col", "im2col + GEMM", "#a3b07a"),
    _static("static-convgemm", "native convgemm", "ConvGEMM", "#1f9e89"),
    _static("static-direct", "native direct", "direct", "#8d6e63"),
    _static("static-winograd2", "native winograd2", "Winograd F(2)", "#b39ddb"),
    _static("static-winograd4", "native winograd4", "Winograd F(4)", "#7e57c2"),
)

REFERENCE = PEERS[0]
"""Every result is compared with this one's."""


def find_peers(names: Sequence[str]) -> tuple[ModelPeer, ...]:
    """Return the rows of these names, in the table's order. Raises InvalidArgument."""
    return find_rows(PEERS, names)
