"""OpenVINO on the CPU, in the type of the model."""

from __future__ import annotations

from typing import Any

import openvino
import torch
from openvino.frontend import OpConversionFailure
from torch import Tensor, nn

from bestof.bench.model.peers.prepared import Prepared

_PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def prepare(model: nn.Module, example: Tensor, threads: int) -> Prepared:
    """Convert PyTorch's graph for exactly this shape.

    A model of bfloat16 is converted in float32, which holds its weights exactly, and then computed
    in bfloat16: OpenVINO's own way.
    """
    precision = _PRECISIONS[next(model.parameters()).dtype]
    model = model.float()
    example = example.float() if example.is_floating_point() else example
    converted = _convert(model, example)
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        # By default it computes in bfloat16 on some processors.
        "INFERENCE_PRECISION_HINT": precision,
    }
    request: Any = openvino.Core().compile_model(converted, "CPU", options).create_infer_request()
    images = example.numpy()
    return Prepared(lambda: request.infer([images], share_inputs=True, share_outputs=True)[0])


def _convert(model: nn.Module, example: Tensor) -> Any:
    shape = list(example.shape)
    try:
        return openvino.convert_model(model, example_input=example, input=[shape])
    except OpConversionFailure:  # aten::diff in traces of GPT-2 and Llama; exports have it in parts
        return openvino.convert_model(torch.export.export(model, (example,)), input=[shape])
