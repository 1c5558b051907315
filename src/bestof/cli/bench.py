"""`bestof bench`: measure this machine. Each benchmark is one module."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module

from bestof.cli.command import Command, Subcommand
from bestof.cli.options import parser_of

# A benchmark's module is imported when it is called, so `bench dispatch` does not wait for torch.
BENCHES = (
    Command("dispatch", "bestof.cli.bench_dispatch", "what a call of a selector costs"),
    Command("conv", "bestof.cli.bench_conv", "every alternative of a convolution, for each pass"),
    Command("gemm", "bestof.cli.bench_gemm", "matrix products, ours beside MKL and oneDNN"),
    Command("model", "bestof.cli.bench_model", "whole models, by bestof and by other libraries"),
    Command("operation", "bestof.cli.bench_operation", "every row of operations of eager calls"),
    Command("transpose", "bestof.cli.bench_transpose", "changes of layout, compared with a copy"),
)


_EPILOG = """\
  bestof bench conv i64x56x56,k64x3x3,b8,p1
  bestof bench model vgg16 --train --batch 8

`bestof bench BENCHMARK --help` tells more."""


def call(argv: Sequence[str]) -> int | Callable[[], int]:
    """Find the benchmark, and pass the other arguments to it."""
    found = next((bench for bench in BENCHES if argv and bench.name == argv[0]), None)
    if found is None:
        parser = make_parser()
        parser.parse_args(argv)
        parser.error("name the benchmark first")
    bench: Subcommand = import_module(found.module)
    return bench.call(argv[1:])


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    width = max(len(bench.name) for bench in BENCHES)
    rows = (f"  {bench.name:<{width}}  {bench.summary}" for bench in BENCHES)
    parser = parser_of(
        "bench",
        usage="bestof bench [-h] BENCHMARK ...",
        description="Measure this machine.",
        epilog="\n".join(["benchmarks:", *rows, "", _EPILOG]),
    )
    parser.add_argument("benchmark", metavar="BENCHMARK", choices=[bench.name for bench in BENCHES])
    return parser
