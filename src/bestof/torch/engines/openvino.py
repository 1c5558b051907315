"""OpenVINO on the CPU, in the type of the model."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from threading import Lock
from typing import Any

import openvino
import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.engines.build import Call
from bestof.torch.engines.flat import FlatModel

_PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def build(flat: FlatModel, tensors: Sequence[Tensor], threads: int, accuracy: Accuracy) -> Call:
    """Convert PyTorch's graph for exactly these shapes.

    A model of bfloat16 is converted in float32, which holds its weights exactly, and then computed
    in bfloat16: OpenVINO's own way. A model of float32 is computed in bfloat16 if the accuracy is
    "relaxed".
    """
    types = {one.dtype for one in flat.parameters() if one.is_floating_point()}
    dtype = types.pop() if len(types) == 1 else torch.float32
    if dtype is not torch.float32:
        flat = deepcopy(flat).float()  # the caller's model stays as it is
    precision = _PRECISIONS[dtype]
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        # By default it computes in bfloat16 on some processors.
        "INFERENCE_PRECISION_HINT": "bf16" if accuracy == "relaxed" else precision,
    }
    converted = _convert(flat, tuple(map(_readable, tensors)))
    request: Any = openvino.Core().compile_model(converted, "CPU", options).create_infer_request()
    types_of_outputs = _output_types(flat, tensors) if dtype is not torch.float32 else None
    count = len(converted.outputs)
    lock = Lock()  # a request serves one thread

    def call(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        given = [_readable(one).numpy() for one in tensors]
        with lock:
            results = request.infer(given, share_inputs=True, share_outputs=True)
            # The next call overwrites the memory of these.
            outputs = [torch.tensor(results[place]) for place in range(count)]
        if types_of_outputs is None:
            return outputs
        return [one.to(dtype) for one, dtype in zip(outputs, types_of_outputs, strict=True)]

    return call


def _readable(one: Tensor) -> Tensor:
    """Return a tensor that NumPy can read, which has no bfloat16."""
    one = one.detach().contiguous()
    return one.float() if one.dtype in (torch.bfloat16, torch.float16) else one


def _output_types(flat: FlatModel, tensors: Sequence[Tensor]) -> list[torch.dtype]:
    halves = {one.dtype for one in tensors if one.is_floating_point()}
    with torch.no_grad():
        outputs = flat(*map(_readable, tensors))
    dtype = halves.pop() if len(halves) == 1 else torch.bfloat16
    return [dtype if one.is_floating_point() else one.dtype for one in outputs]


def _convert(flat: FlatModel, tensors: tuple[Tensor, ...]) -> Any:
    shapes = [list(one.shape) for one in tensors]
    try:
        return openvino.convert_model(flat, example_input=tensors, input=shapes)
    except Exception:
        # aten::diff in traces of GPT-2 and Llama, which exports have in parts; layers of
        # transformers, whose traces differ with gradients on and off
        return openvino.convert_model(torch.export.export(flat, tensors), input=shapes)
