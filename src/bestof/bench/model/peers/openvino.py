"""OpenVINO on the CPU, in float32."""

from __future__ import annotations

from typing import Any

import openvino
from torch import Tensor, nn

from bestof.bench.model.peers.prepared import Prepared


def prepare(model: nn.Module, example: Tensor, threads: int) -> Prepared:
    """Convert PyTorch's graph for exactly this shape."""
    converted = openvino.convert_model(model, example_input=example, input=[list(example.shape)])
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",  # else it computes in bfloat16 on some processors
    }
    request: Any = openvino.Core().compile_model(converted, "CPU", options).create_infer_request()
    images = example.numpy()
    return Prepared(lambda: request.infer([images], share_inputs=True, share_outputs=True)[0])
