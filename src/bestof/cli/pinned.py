"""`bestof pinned`: run a script as a rank of torchrun, on the processors of its rank."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from bestof.cli import main
from bestof.cli.options import parser_of
from bestof.cli.script import find_module, find_script, split_arguments
from bestof.errors import InvalidArgument
from bestof.scale.split import parse_pins

_EPILOG = """\
PROCESSORS has a list for each rank of this machine, such as 0-3/4-7. A rank has
as many threads as its list has processors.

  torchrun --standalone --nproc-per-node 2 -m bestof pinned 0-3/4-7 train.py

Put `-m bestof run train.py` in place of `train.py` to tune its kernels too."""


def call(argv: Sequence[str]) -> Callable[[], int]:
    """Pin this process. Return a function that runs the program."""
    if not argv or argv[0].startswith("-"):
        make_parser().parse_args(argv)
    _, module, rest = split_arguments(argv[1:], ())
    if not rest:
        raise InvalidArgument(
            "nothing to run; usage: bestof pinned PROCESSORS script.py [arguments]"
        )
    if module and rest[0] == "bestof":
        pin(argv[0])
        return partial(main, rest[1:])
    script = find_module(rest[0], rest[1:]) if module else find_script(rest[0], rest[1:])
    pin(argv[0])
    return script.run


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    return parser_of(
        "pinned",
        usage="bestof pinned PROCESSORS (script.py | -m MODULE) [arguments]",
        description="Run a script on the processors of its rank.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )


def pin(text: str) -> None:
    """Move this process to the processors of its rank. Call it before torch is imported."""
    pins = parse_pins(text)
    rank = os.environ.get("LOCAL_RANK", "0")
    if not rank.isdecimal() or int(rank) >= len(pins):
        raise InvalidArgument(
            f"{text!r} has processors for {len(pins)} ranks, but LOCAL_RANK is {rank}; "
            f"pass --nproc-per-node {len(pins)} to torchrun"
        )
    own = pins[int(rank)]
    if sys.platform == "linux":
        missing = set(own) - os.sched_getaffinity(0)
        if missing:
            raise InvalidArgument(
                f"the processors {sorted(missing)} of rank {rank} are not allowed to this "
                "process; run `bestof scale` again on this machine"
            )
        os.sched_setaffinity(0, own)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(len(own))
