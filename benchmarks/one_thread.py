"""Are small operations of PyTorch faster on one thread than on all?

    python benchmarks/one_thread.py

Prints the 10th percentile of each operation's calls in us: on one thread, on all, and on one thread
where each call switches the number and back. Beside other programs, calls on all threads may wait
for a processor, for some ms each: repeat the run then.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor
from torch.nn import functional

PRODUCTS = ((16, 16, 16), (32, 32, 32), (64, 64, 64), (96, 96, 96), (1, 256, 256), (32, 128, 128))
CONVOLUTIONS = ((3, 32, 16, 3), (16, 8, 16, 3), (16, 16, 16, 3), (64, 4, 128, 3), (64, 14, 64, 1))
ATTENTIONS = ((4, 16, 32), (4, 64, 32))


def operations() -> dict[str, Callable[[], Tensor]]:
    """Return small calls by what they compute."""
    found: dict[str, Callable[[], Tensor]] = {}
    for m, k, n in PRODUCTS:
        a, b = torch.randn(m, k), torch.randn(k, n)
        found[f"product {m}x{k}x{n}"] = lambda a=a, b=b: torch.mm(a, b)
    for c, side, k, r in CONVOLUTIONS:
        x, w = torch.randn(1, c, side, side), torch.randn(k, c, r, r)
        found[f"convolution i{c}x{side}x{side},k{k}x{r}x{r}"] = lambda x=x, w=w: functional.conv2d(
            x, w, padding=w.shape[-1] // 2
        )
    for heads, length, size in ATTENTIONS:
        q = torch.randn(1, heads, length, size)
        found[f"attention {heads}x{length}x{size}"] = lambda q=q: (
            functional.scaled_dot_product_attention(q, q, q)
        )
    return found


def on_one(call: Callable[[], Tensor], threads: int) -> None:
    torch.set_num_threads(1)
    call()
    torch.set_num_threads(threads)


def timed(call: Callable[[], object], seconds: float) -> list[float]:
    """Return the seconds of calls, after three for warming up."""
    for _ in range(3):
        call()
    taken = []
    end = perf_counter() + seconds
    while (before := perf_counter()) < end:
        call()
        taken.append(perf_counter() - before)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.03, help="of each way in a round")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"{'us':34}{'one':>9}{f'all ({threads})':>9}{'switched':>9}")
    for name, call in operations().items():
        ways = (1, call), (threads, call), (threads, lambda call=call: on_one(call, threads))
        times: list[list[float]] = [[], [], []]
        for _ in range(options.rounds):
            for (number, way), taken in zip(ways, times, strict=True):
                torch.set_num_threads(number)
                taken.extend(timed(way, options.seconds))
        tenths = (sorted(taken)[len(taken) // 10] for taken in times)
        print(f"{name:34}" + "".join(f"{1e6 * one:9.1f}" for one in tenths), flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
