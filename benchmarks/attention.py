"""How much faster is native attention than PyTorch's? Ratios: one process, in turn, one pool of
threads.

The peers are `aten::_scaled_dot_product_flash_attention_for_cpu`, which
`F.scaled_dot_product_attention` calls, and its backward operator. Both return what the native
kernels return. A ratio above 1 means that the native one is faster; it is the median of the rounds,
with its quartiles. The peak that was measured in the same run stands above the table, and the
native kernel's share of it (one multiply-add counts as two; a causal mask halves the work) in its
last column. bfloat16 has the peak of float32: a processor with an instruction for it may exceed 1.

    python benchmarks/attention.py                             # two minutes
    python benchmarks/attention.py --threads 1 --cpu-time      # on a busy machine
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bestof import kernels
from bestof.kernels.attention_backward import AttentionBackwardPlan
from bestof.profile.peak import measure_peak
from bestof.selection.identity.host import host

_forward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Step = Callable[[], tuple[Tensor, ...]]


class Case:
    """Heads as a joined projection leaves them: side by side in each token."""

    def __init__(self, tokens: int, dtype: str, causal: bool, options: argparse.Namespace) -> None:
        shape = options.batch, tokens, options.heads, options.size
        self.dtype, self.causal = dtype, causal
        self.q, self.k, self.v, self.gradient = (
            torch.randn(shape).to(_NAMES[dtype]).transpose(1, 2) for _ in range(4)
        )
        self.out, self.logsumexp = _forward(self.q, self.k, self.v, 0.0, causal)
        self.scale = options.size**-0.5
        self.work = 4 * options.batch * options.heads * tokens**2 * options.size
        self.work //= 2 if causal else 1

    def forward(self, threads: int) -> tuple[Step, Step]:
        """Return PyTorch's pass and the native one."""
        given = self.q, self.k, self.v
        plan = kernels.AttentionPlan(
            *_forms([*given, torch.empty_like(self.q), None, self.logsumexp]),
            causal=self.causal,
            scale=self.scale,
            dtype=self.dtype,
            threads=threads,
        )

        def native() -> tuple[Tensor, ...]:
            out, sums = torch.empty_like(self.q), torch.empty_like(self.logsumexp)
            plan.run(*(x.data_ptr() for x in (*given, out)), 0, sums.data_ptr())
            return out, sums

        return lambda: _forward(*given, 0.0, self.causal), native

    def backward(self, threads: int) -> tuple[Step, Step]:
        """Return PyTorch's pass and the native one."""
        given = self.gradient, self.q, self.k, self.v, self.out, self.logsumexp
        plan = AttentionBackwardPlan(
            *_forms([*given, None, *given[1:4]]),
            causal=self.causal,
            scale=self.scale,
            dtype=self.dtype,
            threads=threads,
        )

        def native() -> tuple[Tensor, ...]:
            made = tuple(torch.empty_like(x) for x in given[1:4])
            plan.run([*(x.data_ptr() for x in given), 0, *(x.data_ptr() for x in made)])
            return made

        return lambda: _backward(*given, 0.0, self.causal), native


def _forms(arrays: Sequence[Tensor | None]) -> tuple[list[Any], list[Any]]:
    """Return shapes and strides."""
    return (
        [None if x is None else tuple(x.shape) for x in arrays],
        [None if x is None else x.stride() for x in arrays],
    )


def _time_of(step: Step, calls: int, clock: Callable[[], float]) -> float:
    """Return the seconds of one of `calls` calls."""
    begin = clock()
    for _ in range(calls):
        step()
    return (clock() - begin) / calls


def measure(case: Case, which: str, threads: int, peak: float, options: argparse.Namespace) -> str:
    """Return a row of the table."""
    own, native = case.forward(threads) if which == "forward" else case.backward(threads)
    near = 1e-4 if case.dtype == "float32" else 2e-2
    for got, right in zip(native(), own(), strict=True):
        torch.testing.assert_close(got, right, rtol=near, atol=near)
    clock = time.process_time if options.cpu_time else time.perf_counter
    calls = max(1, int(0.02 / _time_of(own, 1, clock)))
    pairs = [
        (_time_of(own, calls, clock), _time_of(native, calls, clock)) for _ in range(options.rounds)
    ]
    low, middle, high = statistics.quantiles((theirs / ours for theirs, ours in pairs), n=4)
    theirs, ours = (statistics.median(times) for times in zip(*pairs, strict=True))
    work = case.work * (2.5 if which == "backward" else 1)  # five products in place of two
    return (
        f"{theirs * 1e3:11.2f} {ours * 1e3:10.2f} {middle:6.2f} ({low:.2f} to {high:.2f})"
        f" {work / ours / peak:6.2f}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", default=list(_NAMES), choices=list(_NAMES))
    parser.add_argument("--passes", nargs="+", default=["forward", "backward"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--cpu-time", action="store_true", help="count the time of the processor, of all threads"
    )
    options = parser.parse_args()
    torch.manual_seed(1)
    print(f"{host()}, {kernels.isa()}, {options.heads} heads of {options.size}")
    for threads in options.threads:
        torch.set_num_threads(threads)
        peak = measure_peak().flops
        print(f"{threads} threads: peak {peak / 1e9:.0f} GFLOP/s")
        print("pass     dtype    tokens   mask PyTorch, ms native, ms  ratio (quartiles)    share")
        for which in options.passes:
            for dtype in options.dtypes:
                for tokens in options.tokens:
                    for causal in (False, True):
                        case = Case(tokens, dtype, causal, options)
                        row = measure(case, which, threads, peak, options)
                        kind = "causal" if causal else ""
                        print(f"{which:8s} {dtype:8s} {tokens:6d} {kind:>6s} {row}", flush=True)


if __name__ == "__main__":
    main()
