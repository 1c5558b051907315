"""ONNX Runtime on the CPU, with all of its graph optimizations."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime
import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.errors import TorchError
from bestof.torch.engines.build import Call
from bestof.torch.engines.flat import FlatModel

_REGISTRATION = logging.getLogger("torch.onnx._internal.exporter._registration")


def build(flat: FlatModel, tensors: Sequence[Tensor], threads: int, _accuracy: Accuracy) -> Call:
    """Export the model by PyTorch for exactly these shapes."""
    if any(one.dtype is torch.bfloat16 for one in (*tensors, *flat.parameters())):
        raise TorchError("ONNX Runtime's kernels for the CPU lack bfloat16")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        _REGISTRATION.setLevel(logging.ERROR)  # it warns that torchvision is not installed
        torch.onnx.export(flat, tuple(tensors), file, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    if len(names) != len(tensors):
        raise TorchError(f"the exported model reads {len(names)} of {len(tensors)} tensors")

    def call(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        given = {
            name: one.detach().contiguous().numpy()
            for name, one in zip(names, tensors, strict=True)
        }
        return [torch.from_numpy(one) for one in session.run(None, given)]

    return call
