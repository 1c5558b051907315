"""How far from the processor's peak are the convolutions of a training step, by PyTorch and by us?

For each pass of each 1-D or 2-D convolution of a network: calls a step, GFLOP, ms and GFLOP/s of
PyTorch's own kernel, and of the fastest row. GFLOP are those of a direct convolution, without what
it multiplies with padding. Below stand the sums of a step. Times are the least of several calls, on
one thread, in processor time, so a busy machine shows about what an idle one does.

    python benchmarks/convolution_rates.py dcgan conv1d
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from other_convolutions import NETWORKS, training_step
from training_steps import Step, timed

import bestof.torch as bt
from bestof import kernels
from bestof.profile.recording.recorder import processor_name
from bestof.torch.dispatch.overrides import operation_overrides
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.passes import PASSES
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.process.freed_memory import keep_freed
from bestof.torch.rows.row_selector import original_of

CALLS = 7


def least(run: Callable[[], Any]) -> float:
    run()
    return min(timed(run, time.process_time) for _ in range(CALLS))


def peak() -> float:
    """Return the FLOP/s of multiply-adds in registers."""
    steps = 1 << 18
    return kernels.multiply_adds(steps, threads=1) / least(
        lambda: kernels.multiply_adds(steps, threads=1)
    )


def passes_of(step: Step) -> list[tuple[Conv2dPass, ConvProblem, int]]:
    """Return the passes of convolutions that `enable` meets in a step, and their calls."""

    def totals() -> dict[tuple[Conv2dPass, ConvProblem], int]:
        parts = [one for one in operation_overrides() if one.operation in PASSES]
        counts = {one.operation: one.calls.totals() for one in parts}
        return {(op, problem): n for op, found in counts.items() for problem, n in found.items()}  # type: ignore[misc]

    before = totals()
    with bt.enabled():
        step()
    found = [(*key, calls - before.get(key, 0)) for key, calls in totals().items()]
    return [one for one in found if one[-1]]


def rows_of(operation: Conv2dPass, problem: ConvProblem) -> dict[str, float]:
    """Return the seconds of a call of each row that is tried, PyTorch's own first."""
    x, weight = torch.randn(problem.input_shape), torch.randn(problem.weight_shape)
    geometry = problem.stride, problem.padding, problem.dilation
    result = torch.conv2d(x, weight, None, *geometry, groups=problem.groups)
    given: tuple[Any, ...] = (x, weight, None, *geometry, False, (0, 0), problem.groups)
    if operation is not PASSES[0]:
        given = (torch.randn_like(result), *given, (True, True, False))
    call = operation.call("float32", *given)
    assert call is not None
    args = (original_of(operation), call.problem, *call.operands)
    rows = [row for row in operation.rows if row.is_tried(call.problem)]
    return {row.name: least(lambda row=row: row.function(*args)) for row in rows}  # type: ignore[misc]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="*", choices=NETWORKS, help="those of other_convolutions")
    networks = parser.parse_args().network
    torch.set_num_threads(1)
    keep_freed()
    best = peak()
    print(
        f"{processor_name()}, 1 thread, peak {best / 1e9:.0f} GFLOP/s, PyTorch {torch.__version__}"
    )
    for name in networks:
        label, make, shape = NETWORKS[name]
        torch.manual_seed(0)
        step = training_step(make(), shape)
        whole, own, ours, work = least(step), 0.0, 0.0, 0
        print(f"\n{label}")
        for operation, problem, calls in passes_of(step):
            times, gflop = rows_of(operation, problem), problem.flops / 1e9
            row = min(times, key=times.__getitem__)
            pair = times[operation.rows[0].name], times[row]
            own, ours = own + calls * pair[0], ours + calls * pair[1]
            work += calls * problem.flops
            words = [f"{1e3 * seconds:7.2f} ms {gflop / seconds:5.0f}" for seconds in pair]
            where = f"{operation.label:15} {problem.notation:42} x{calls} {gflop:6.3f} GFLOP"
            print(where, *words, row, flush=True)
        print(
            f"a step {1e3 * whole:.0f} ms, convolutions {1e3 * own:.0f}, by the fastest rows "
            f"{1e3 * ours:.0f}, at the peak {1e3 * work / best:.0f}: "
            f"{whole / (whole - own + ours):.2f} times as fast at best"
        )


if __name__ == "__main__":
    main()
