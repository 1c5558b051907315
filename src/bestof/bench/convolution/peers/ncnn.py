"""ncnn, by a network of one layer with a fused ReLU, in float32.

Input and output have ncnn's packed layout, memory comes from its pools. ncnn has no gradients. It
has no batches either, so a batch is that many calls.
"""

from __future__ import annotations

from os import environ
from pathlib import Path
from tempfile import TemporaryDirectory

import ncnn
import numpy

from bestof.bench.convolution.case import Array, Case, Operands, samples_of
from bestof.bench.convolution.run import Run


def version() -> str:
    return f"ncnn {ncnn.__version__}"


def prepare(case: Case) -> dict[str, Run]:
    """Return one run, forward only: ncnn chooses its algorithm itself, Winograd included."""
    if case.direction != "forward":
        return {}
    operands = Operands.of(case)
    net = _net(case, operands)
    inputs = [_packed(image) for image in operands.x]
    outputs: list[ncnn.Mat] = []

    def call() -> None:
        outputs.clear()
        for image in inputs:
            extractor = net.create_extractor()
            extractor.input("x", image)
            outputs.append(extractor.extract("y", 1)[1])  # 1: as the layer leaves it

    def samples() -> list[float]:
        images = [numpy.array(ncnn.convert_packing(one, 1)).transpose(1, 2, 0) for one in outputs]
        return samples_of(numpy.stack(images))

    return {"ncnn": Run(call, samples, operands=(net, operands))}


def _net(case: Case, operands: Operands) -> ncnn.Net:
    net = ncnn.Net()
    net.opt.num_threads = int(environ["OMP_NUM_THREADS"])
    net.opt.use_fp16_storage = net.opt.use_fp16_packed = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = False
    net.opt.blob_allocator, net.opt.workspace_allocator = _BLOBS, _WORKSPACE
    kind, groups = (
        ("ConvolutionDepthWise", f" 7={case.groups}") if case.groups > 1 else ("Convolution", "")
    )
    parameters = (
        f"0={case.filters} 1={case.kernel_width} 11={case.kernel_height} "
        f"2={case.dilation[1]} 12={case.dilation[0]} "
        f"3={case.stride[1]} 13={case.stride[0]} 4={case.padding[1]} 14={case.padding[0]} 5=1 "
        f"6={operands.w.size}{groups} 9=1"
    )
    with TemporaryDirectory() as folder:
        text, weights = Path(folder) / "layer.param", Path(folder) / "layer.bin"
        text.write_text(
            f"7767517\n2 2\nInput x 0 1 x\n{kind} conv 1 1 x y {parameters}\n", encoding="utf-8"
        )
        tag = numpy.zeros(1, numpy.uint32).tobytes()  # the weights follow as float32
        weights.write_bytes(
            tag + operands.w.transpose(0, 3, 1, 2).tobytes() + operands.bias.tobytes()
        )
        net.load_param(str(text))
        net.load_model(str(weights))
    return net


_BLOBS, _WORKSPACE = ncnn.PoolAllocator(), ncnn.UnlockedPoolAllocator()


def _packed(image: Array) -> ncnn.Mat:
    """Return an HWC image in the layout that ncnn's layers exchange, with a vector of channels
    together.
    """
    planes = numpy.ascontiguousarray(image.transpose(2, 0, 1))  # a Mat borrows the array
    mat = ncnn.Mat(planes).clone()
    lanes = next((n for n in _LANES if image.shape[2] % n == 0), 1)
    return ncnn.convert_packing(mat, lanes) if lanes > 1 else mat


_LANES = (16, 8, 4)
