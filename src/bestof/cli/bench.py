"""`bestof bench`: measure this machine; one module a benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module

from bestof.cli.command import Command, Subcommand

# A benchmark's module is imported when it is called, so `bench dispatch` does not wait for torch.
BENCHES = (
    Command("dispatch", "bestof.cli.bench_dispatch", "what it costs to have a function selected"),
    Command("conv", "bestof.cli.bench_conv", "every alternative of a convolution, pass by pass"),
    Command("model", "bestof.cli.bench_model", "whole models, ours beside every peer"),
    Command(
        "transpose", "bestof.cli.bench_transpose", "layouts turned into each other, beside a copy"
    ),
)


def call(argv: Sequence[str]) -> int | Callable[[], int]:
    """Find the benchmark, and hand it the other arguments."""
    found = next((bench for bench in BENCHES if argv and bench.name == argv[0]), None)
    if found is None:
        parser = _parser()
        parser.parse_args(argv)
        parser.error("name the benchmark first")
    bench: Subcommand = import_module(found.module)
    return bench.call(argv[1:])


def _parser() -> argparse.ArgumentParser:
    width = max(len(bench.name) for bench in BENCHES)
    rows = (f"  {bench.name:<{width}}  {bench.summary}" for bench in BENCHES)
    parser = argparse.ArgumentParser(
        prog="bestof bench",
        usage="bestof bench [-h] BENCHMARK ...",
        description="Measure this machine.",
        epilog="\n".join(["benchmarks:", *rows, "", "`bestof bench BENCHMARK --help` tells more."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benchmark", metavar="BENCHMARK", choices=[bench.name for bench in BENCHES])
    return parser
