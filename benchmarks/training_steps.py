"""Steps of training with and without `enable`, in turn, in one process."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable

import torch
from in_turn import add_clock
from settled import settle

import bestof.torch as bt
from bestof.torch.process.freed_memory import keep_freed

Step = Callable[[], None]


def add_options(
    parser: ArgumentParser, names: Iterable[str], *, rounds: int, settling: int
) -> None:
    """Add the options of a benchmark of steps. names: of what is trained."""
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--settling", type=int, default=settling, help="the most steps of tuning")
    parser.add_argument("--only", choices=[*names], help="train this one only")
    parser.add_argument("--choices", action="store_true", help="print what was chosen")
    add_clock(parser)


def prepare(options: Namespace) -> Callable[[], float]:
    """Set the threads, keep freed memory, and return the clock, in seconds."""
    torch.set_num_threads(options.threads)
    keep_freed()
    return time.process_time if options.cpu_time else time.perf_counter


def compared(
    step: Step, rounds: int, settling: int, clock: Callable[[], float]
) -> tuple[int, list[list[float]]]:
    """Return the steps until all is chosen, and the seconds of steps without and with `enable`."""
    with bt.enabled({"kernel": {"budget": None}}):
        steps = settle(step, settling)
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        times[0].append(timed(step, clock))
        with bt.enabled():
            step()  # the first step after a change packs and asks
            times[1].append(timed(step, clock))
        step()
    return steps, times


def timed(step: Step, clock: Callable[[], float]) -> float:
    begin = clock()
    step()
    return clock() - begin


def print_choices() -> None:
    """Print what was chosen for each problem, and milliseconds of a call before and after."""
    for one in bt.summary().passes:
        seconds = [one.seconds_as_is, one.seconds_chosen]
        words = [" " * 9 if s is None else f"{1e3 * s:9.2f}" for s in seconds]
        print(f"{one.name:16} {one.problem:66} {one.chosen!s:24}", *words)
