"""ONNX Runtime on the CPU, with all of its graph optimizations."""

from __future__ import annotations

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime
import torch
from torch import Tensor, nn

from bestof.bench.model.peers.prepared import Prepared


def prepare(model: nn.Module, example: Tensor, threads: int) -> Prepared:
    """Export the model by PyTorch for exactly this shape."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model, (example,), file, input_names=["images"], dynamo=True, verbose=False
            )
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    images = {"images": example.numpy()}
    return Prepared(lambda: session.run(None, images)[0])
