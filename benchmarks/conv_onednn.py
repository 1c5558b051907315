"""How much faster than oneDNN are the native convolutions? Ratios: one process, in turn, on one pool of threads.

oneDNN runs through PyTorch as compiled and frozen models run it: channels last, weights reordered beforehand, ReLU
fused. The backward passes run as eager training does, channels last. A ratio above 1 means that ours is faster.

    python benchmarks/conv_onednn.py --set vgg16 --batch 8 --threads 2
    python benchmarks/conv_onednn.py --set resnet50 --cpu-time --threads 1      # on a busy machine
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from bestof import kernels


@dataclass(frozen=True, slots=True)
class Layer:
    """A square layer: channels in and out, kernel, stride, pad, extent of the image."""

    channels: int
    outputs: int
    kernel: int
    stride: int
    pad: int
    extent: int

    @property
    def out_extent(self) -> int:
        """Rows and columns of the result."""
        return (self.extent + 2 * self.pad - self.kernel) // self.stride + 1

    def __str__(self) -> str:
        return f"{self.kernel}x{self.kernel}/{self.stride} {self.channels}->{self.outputs} @{self.extent}"


LAYERS = {
    "vgg16": [Layer(c, c, 3, 1, 1, e) for c, e in ((64, 224), (128, 112), (256, 56), (512, 28), (512, 14), (512, 7))],
    "resnet50": [
        Layer(c, k, 1, s, 0, e)
        for c, k, e, s in (
            (64, 64, 56, 1),
            (64, 256, 56, 1),
            (256, 64, 56, 1),
            (256, 128, 56, 1),
            (128, 512, 28, 1),
            (512, 128, 28, 1),
            (256, 512, 56, 2),
            (256, 1024, 14, 1),
            (1024, 256, 14, 1),
            (512, 1024, 28, 2),
            (512, 2048, 7, 1),
            (2048, 512, 7, 1),
        )
    ],
    "strided": [
        Layer(c, k, 3, 2, 1, e)
        for c, k, e in ((64, 128, 56), (128, 128, 56), (128, 256, 28), (256, 256, 28), (256, 512, 14), (512, 512, 14))
    ],
    "stem": [Layer(3, 64, 7, 2, 3, 224), Layer(3, 64, 3, 1, 1, 224), Layer(3, 32, 3, 2, 1, 224)],
}


@dataclass(frozen=True, slots=True)
class Row:
    """One algorithm on one layer: milliseconds, and oneDNN's time over ours with the quartiles of the pairs."""

    layer: str
    direction: str
    algorithm: str
    onednn_ms: float
    ours_ms: float
    ratio: float
    low: float
    high: float


def compare(
    peer: Callable[[], object],
    ours: dict[str, Callable[[], object]],
    seconds: float,
    clock: Callable[[], float],
) -> dict[str, tuple[float, float, float, float, float]]:
    """Times all in turn: for each of ours, median ms of the peer and of itself, and the quartiles of the ratios."""
    runs = {"": peer, **ours}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    begin = time.perf_counter()
    while len(times[""]) < 5 or time.perf_counter() - begin < seconds * len(runs):
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append(clock() - start)
    result = {}
    for name in ours:
        ratios = [a / b for a, b in zip(times[""], times[name], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        milliseconds = [statistics.median(times[key]) * 1e3 for key in ("", name)]
        result[name] = (milliseconds[0], milliseconds[1], middle, low, high)
    return result


def measure(layer: Layer, batch: int, direction: str, seconds: float, clock: Callable[[], float]) -> list[Row]:
    """The rows of every algorithm that applies to a layer."""
    x = torch.rand(batch, layer.extent, layer.extent, layer.channels)
    w = torch.randn(layer.outputs, layer.kernel, layer.kernel, layer.channels) / (layer.kernel * layer.channels**0.5)
    bias = torch.randn(layer.outputs)
    y = torch.empty(batch, layer.out_extent, layer.out_extent, layer.outputs)
    grad = torch.rand_like(y)
    stride, pad = [layer.stride] * 2, [layer.pad] * 2
    geometry = {"stride": layer.stride, "padding": layer.pad}
    names = kernels.conv2d_algorithms(x.shape, w.shape, direction=direction, **geometry)
    last = [t.permute(0, 3, 1, 2) for t in (x, w, grad)]
    ours: dict[str, Callable[[], object]] = {}
    if direction == "forward":
        packed = torch._C._nn.mkldnn_reorder_conv2d_weight(
            last[1].contiguous().to_mkldnn(), pad, stride, [1, 1], 1, list(last[0].shape)
        )

        def peer() -> object:
            return torch.ops.mkldnn._convolution_pointwise(
                last[0], packed, bias, pad, stride, [1, 1], 1, "relu", [], None
            )

        for name in names:
            plan = kernels.Conv2dPlan(x.shape, w.shape, algorithm=name, activation="relu", **geometry)
            weights = kernels.pack_weights(w, name)
            ours[name] = lambda plan=plan, weights=weights: plan.run(
                x.data_ptr(), weights, y.data_ptr(), bias.data_ptr()
            )
    else:
        of_input = direction == "backward_input"

        def peer() -> object:
            mask = [of_input, not of_input, False]
            return torch.ops.aten.convolution_backward(
                last[2], last[0], last[1], None, stride, pad, [1, 1], False, [0, 0], 1, mask
            )

        other, result = (w, torch.empty_like(x)) if of_input else (x, torch.empty_like(w))
        for name in names:
            plan = kernels.Conv2dPlan(x.shape, w.shape, algorithm=name, direction=direction, **geometry)
            ours[name] = lambda plan=plan: plan.run(grad.data_ptr(), other.data_ptr(), result.data_ptr())
    with torch.no_grad():
        compared = compare(peer, ours, seconds, clock)
    return [Row(str(layer), direction, name, *numbers) for name, numbers in compared.items()]


def main() -> None:
    """Prints a line for each layer and algorithm, and the median of the best ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=LAYERS, default="vgg16")
    parser.add_argument("--direction", choices=("forward", "backward_input", "backward_weight"), default="forward")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each algorithm of each layer")
    parser.add_argument("--cpu-time", action="store_true", help="time of the calling thread only; needs --threads 1")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.cpu_time and options.threads != 1:
        parser.error("--cpu-time counts one thread: it needs --threads 1")
    torch.set_num_threads(options.threads)
    clock = time.thread_time if options.cpu_time else time.perf_counter
    best = []
    for layer in LAYERS[options.set]:
        rows = measure(layer, options.batch, options.direction, options.seconds, clock)
        best.append(max(row.ratio for row in rows))
        for row in sorted(rows, key=lambda row: -row.ratio):
            if options.json:
                print(json.dumps(asdict(row)), flush=True)
            else:
                print(
                    f"{row.layer:24} {row.algorithm:10} oneDNN {row.onednn_ms:8.3f} ms  ours {row.ours_ms:8.3f} ms  "
                    f"ratio {row.ratio:5.2f} ({row.low:.2f} to {row.high:.2f})",
                    flush=True,
                )
    if not options.json:
        print(f"median of the best ratios: {statistics.median(best):.2f}")


if __name__ == "__main__":
    main()
