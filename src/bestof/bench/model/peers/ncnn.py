"""ncnn on the CPU, in float32. It has no batches, so the images of a batch follow each other."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import ncnn
import numpy as np
import pnnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bestof.bench.model.peers.prepared import Prepared
from bestof.errors import TorchError


def prepare(model: nn.Module, example: Tensor, threads: int) -> Prepared:
    """Trace the model, and convert it by pnnx for one image of this shape."""
    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.use_vulkan_compute = False
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = False
    with TemporaryDirectory() as folder:
        parameters, weights = _converted(model, example[:1], Path(folder))
        if net.load_param(str(parameters)) or net.load_model(str(weights)):
            raise TorchError("ncnn cannot load what pnnx made of this model")
    images = [ncnn.Mat(image) for image in example.numpy()]

    def run() -> NDArray[np.float32]:
        results = []
        for image in images:
            extractor = net.create_extractor()
            extractor.input("in0", image)
            status, result = extractor.extract("out0")
            if status:
                raise TorchError(f"ncnn ended with status {status}")
            results.append(np.array(result))
        return np.stack(results)

    return Prepared(run)


def _converted(model: nn.Module, image: Tensor, folder: Path) -> tuple[Path, Path]:
    traced = folder / "model.pt"
    with torch.no_grad():
        torch.jit.trace(model, image).save(traced)  # type: ignore[no-untyped-call]
    shape = ",".join(str(extent) for extent in image.shape)
    done = subprocess.run(
        [pnnx.EXEC_PATH, str(traced), f"inputshape=[{shape}]", "fp16=0"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    parameters, weights = folder / "model.ncnn.param", folder / "model.ncnn.bin"
    if done.returncode or not parameters.exists() or not weights.exists():
        raise TorchError(
            f"pnnx cannot convert this model (status {done.returncode}): "
            f"{done.stderr.strip()[-300:]}"
        )
    return parameters, weights
