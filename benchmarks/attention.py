"""How much faster is native attention than PyTorch's? Ratios: one process, in turn, one pool of
threads.

The peer is `aten::_scaled_dot_product_flash_attention_for_cpu`, which
`F.scaled_dot_product_attention` calls. Both return the results and the logsumexp. A ratio above 1
means that the native one is faster; it is the median of the rounds, with its quartiles.

    python benchmarks/attention.py --threads 1 2
    python benchmarks/attention.py --threads 1 --cpu-time      # on a busy machine
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bestof import kernels
from bestof.selection.host import host

_own: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def heads_of(batch: int, heads: int, tokens: int, size: int) -> Tensor:
    """Return heads as a joined projection leaves them: side by side in each token."""
    return torch.randn(batch, tokens, heads, size).transpose(1, 2)


def time_of(step: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    """Return the seconds of one of `calls` calls."""
    begin = clock()
    for _ in range(calls):
        step()
    return (clock() - begin) / calls


def measure(
    batch: int, tokens: int, causal: bool, threads: int, options: argparse.Namespace
) -> None:
    """Print a row of the table."""
    q, k, v = (heads_of(batch, options.heads, tokens, options.size) for _ in range(3))

    def native() -> Tensor:
        out = torch.empty_like(q)
        sums = torch.empty(batch, tokens, options.heads).transpose(1, 2)
        arrays = [x.numpy() for x in (q, k, v)]
        kernels.attention(
            *arrays, causal=causal, out=out.numpy(), logsumexp=sums.numpy(), threads=threads
        )
        return out

    def own() -> Tensor:
        result: Tensor = _own(q, k, v, 0.0, causal)[0]
        return result

    torch.testing.assert_close(native(), own(), rtol=1e-4, atol=1e-5)
    clock = time.process_time if options.cpu_time else time.perf_counter
    calls = max(1, int(0.02 / time_of(own, 1, clock)))
    pairs = [
        (time_of(own, calls, clock), time_of(native, calls, clock)) for _ in range(options.rounds)
    ]
    low, middle, high = statistics.quantiles((theirs / ours for theirs, ours in pairs), n=4)
    theirs, ours = (statistics.median(times) for times in zip(*pairs, strict=True))
    kind = "causal" if causal else ""
    print(
        f"{threads:7d} {batch:5d} {tokens:6d} {kind:>6s} {theirs * 1e3:11.2f} {ours * 1e3:10.2f}"
        f" {middle:6.2f} ({low:.2f} to {high:.2f})"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 197, 256, 512, 1024, 2048])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--cpu-time", action="store_true", help="count the time of the processor, of all threads"
    )
    options = parser.parse_args()
    torch.manual_seed(1)
    print(f"{host()}, {kernels.isa()}, {options.heads} heads of {options.size}")
    print("threads batch tokens   mask PyTorch, ms native, ms  ratio (quartiles)")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for batch in options.batch:
            for tokens in options.tokens:
                for causal in (False, True):
                    measure(batch, tokens, causal, threads, options)


if __name__ == "__main__":
    main()
