"""Steps of models on a CUDA device, and what a small call costs, by PyTorch and with `kernel.cuda`.

python benchmarks/on_cuda.py
python benchmarks/on_cuda.py --only resnet50 --train --batch 32

Prints one line a model: the ratio of PyTorch's time to ours, medians of rounds in turn.
"""

from __future__ import annotations

import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

import torch
from torch.nn import functional

import bestof.torch as bt
from bestof.bench.model.models import MODELS

# model, images a batch, training, TF32, type of autocast
CASES = (
    ("resnet50", 32, True, False, None),
    ("unet", 4, True, False, None),
    ("resnet50", 32, True, False, torch.bfloat16),
    ("resnet50", 1, False, False, None),
    ("mobilenet_v2", 32, True, False, None),
    ("resnet50", 32, True, True, None),
    ("resnet50", 32, False, False, None),
    ("vgg16", 32, True, False, None),
    ("resnet50", 32, True, False, torch.float16),
    ("densenet121", 32, True, False, None),
    ("mobilenet_v2", 1, False, False, None),
    ("vgg16-cifar", 128, True, False, None),
)


def timed(call: Callable[[], object], times: int) -> float:
    """Return the seconds of a call until the device has done it; the mean of several in a row."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / times


def compared(call: Callable[[], object], rounds: int) -> tuple[float, float, float, float]:
    """Return PyTorch's median time, ours, and the quartiles of the ratios."""
    times = max(1, int(0.05 / timed(call, 2)))
    pairs = []
    for _ in range(rounds):
        before = timed(call, times)
        with bt.enabled({"kernel": {"cuda": True}}):
            pairs.append((before, timed(call, times)))
    ratios = sorted(a / b for a, b in pairs)
    before, after = (statistics.median(side) for side in zip(*pairs, strict=True))
    return before, after, ratios[len(ratios) // 4], ratios[(3 * len(ratios)) // 4]


def settle(call: Callable[[], object], seconds: float) -> tuple[int, float, bool]:
    """Call until all is decided. Return the calls, their seconds, and whether all is decided."""
    begin, calls = time.perf_counter(), 0
    with bt.enabled({"kernel": {"cuda": True}}):
        while True:
            for _ in range(10):
                call()
            torch.cuda.synchronize()
            calls += 10
            taken = time.perf_counter() - begin
            passes = bt.summary().passes
            is_decided = bool(passes) and all(one.chosen for one in passes)
            if is_decided or taken > seconds:
                return calls, taken, is_decided


def step_of(
    name: str, batch: int, train: bool, autocast: torch.dtype | None
) -> Callable[[], object]:
    model = next(one for one in MODELS if one.name == name)
    module, x = model.build().cuda(), model.inputs(batch).cuda()
    if not train:
        module.eval()

        def infer() -> object:
            with torch.no_grad(), torch.autocast("cuda", autocast, enabled=autocast is not None):
                return module(x)

        return infer
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", autocast, enabled=autocast is not None):
            out = module(x)
            loss = (out[0] if isinstance(out, tuple) else out).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


def small_calls(rounds: int) -> None:
    """Print the microseconds that the program waits for a small call, without and with us."""
    w = torch.randn(8, 8, 3, 3, device="cuda")
    x = torch.randn(1, 8, 8, 8, device="cuda")
    trained = w.clone().requires_grad_()
    gradient = torch.randn(1, 8, 8, 8, device="cuda")

    def forward() -> None:
        with torch.no_grad():
            functional.conv2d(x, w, padding=1)

    def both() -> None:
        functional.conv2d(x, trained, padding=1).backward(gradient)

    for name, call in (("forward", forward), ("forward and backward", both)):
        settle(call, 20)
        lists: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            lists[0].append(timed(call, 500))
            with bt.enabled({"kernel": {"cuda": True}}):
                lists[1].append(timed(call, 500))
        before, after = map(statistics.median, lists)
        print(f"small {name}: {1e6 * before:.1f} us by PyTorch, {1e6 * after:.1f} us by us")


def measure(case: tuple[str, int, bool, bool, torch.dtype | None], options: Namespace) -> None:
    name, batch, train, tf32, autocast = case
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    call = step_of(name, batch, train, autocast)
    for _ in range(5):
        call()
    plain = timed(call, 10)
    calls, seconds, is_decided = settle(call, options.settle)
    before, after, low, high = compared(call, options.rounds)
    kind = ("tf32" if tf32 else "float32") if autocast is None else str(autocast)[6:]
    words = f"{name} x{batch} {'training' if train else 'inference'} {kind}"
    print(
        f"{words:40} {1e3 * before:8.2f} {1e3 * after:8.2f} ms  ratio {before / after:5.2f} "
        f"({low:.2f} to {high:.2f}); {'all' if is_decided else 'not all'} decided in {calls} "
        f"calls, {seconds:.1f} s, each {seconds / calls / plain:.2f} of PyTorch's",
        flush=True,
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", help="these models")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--settle", type=float, default=40, metavar="SECONDS")
    parser.add_argument("--choices", action="store_true", help="print what was chosen")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__, flush=True)
    small_calls(options.rounds)
    for case in CASES:
        if options.only is None or case[0] in options.only:
            measure(case, options)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    if options.choices:
        for one in bt.summary().passes:
            print(one.name, one.problem, one.chosen, one.seconds_as_is, one.seconds_chosen)


if __name__ == "__main__":
    main()
