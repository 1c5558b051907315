"""What does each change to a detector's training gain, and what did the profile before it promise?

examples/train_detector.py is profiled as it is usually written, and after each change. A projection
is made from the profile before the change:

    frozen gradients   without the backward pass of the frozen layers
    frozen norm        norms and the ReLUs after them, at the bandwidth of a copy
    focal loss         the class loss at the bandwidth of a copy: 4 bytes read twice, written once
    optimizer          28 bytes a parameter at the bandwidth of a copy
    channels last      without the reorders of oneDNN
    enable             the expected time "with `enable`" of `bestof project`

The times come from further steps without a profile, all versions in turn. Each version has a
process of its own, because `enable` tells glibc to keep freed memory, which serves all later steps
of a process. Ratios are medians over the rounds.

A change is kept for the versions after it if it wins a sequential test: pairs of steps, before and
after the change, until one of them was faster LEAD pairs more often than the other. If the slower
one is faster in 35 % of the pairs by noise, the test errs in 2.4 % of cases. After --pairs pairs
without a winner, the change is not kept. With --pairs 0, all changes are kept without a test: this
takes five minutes in place of a quarter of an hour.

    python benchmarks/case_study.py --picture case_study.png
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from in_turn import add_clock
from settled import settle

from bestof.profile import Span, capture
from bestof.profile.peak import Peak, measure_peak
from bestof.profile.projection.measured import Kept
from bestof.profile.projection.projection import project
from bestof.profile.recording.recorder import processor_name
from bestof.profile.steady import Steady, steady_of
from bestof.view.columns import columns
from bestof.view.stacked_bars import Bar, draw_stacked_bars

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import train_detector

# Of the test whether a change is kept.
LEAD = 6

# Steps before a profile. A profiled step in bfloat16 took 1.3 times as long as the steps that were
# timed later if two came before it, and 1.17 times with six.
WARM = 6


class Worker:
    """A process that trains with some changes. `call` sends an order and returns the answer."""

    def __init__(self, changes: Sequence[str], options: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        context.Process(target=serve, args=(other, changes, options), daemon=True).start()

    def call(self, order: str, steps: int) -> Any:
        self._connection.send((order, steps))
        return self._connection.recv()


def serve(connection: Any, changes: Sequence[str], options: argparse.Namespace) -> None:
    """Run steps as ordered. `run` answers with the seconds of each, `profile` with a steady one,
    and `settle` with their number."""
    clock = time.process_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(options.threads)
    step = training_of(changes, options)
    while True:
        try:
            order, steps = connection.recv()
        except EOFError:  # the benchmark has ended
            return
        if order == "profile":
            connection.send(profiled(step, steps))
            continue
        if order == "settle":
            connection.send(settle(step, steps))
            continue
        times = []
        for _ in range(steps):
            begin = clock()
            step()
            times.append(clock() - begin)
        connection.send(times)


def training_of(changes: Sequence[str], options: argparse.Namespace) -> Any:
    return train_detector.Training(changes, options.small, options.size, options.batch)


@dataclass
class Version:
    """The training after one more change, with its profile and the times of its steps."""

    change: str
    changes: Sequence[str]
    worker: Worker
    steady: Steady
    times: list[float] = field(default_factory=list)
    kept: bool = True
    pairs: int = 0


def least(spans: Sequence[Span]) -> float:
    return sum(span.self_seconds for span in spans)


def of_norms(span: Span) -> bool:
    """Whether a span belongs to a frozen norm or to the ReLU after one."""
    towers = span.module.startswith(("classes", "boxes"))
    return span.module_class == "UsualNorm" or (span.module_class == "ReLU" and not towers)


def norm_bytes(step: Any) -> int:
    """Return the bytes of frozen norms in one pass: 8 an element, and 12 more backward."""
    moved = []

    def count(_: Any, __: object, result: torch.Tensor) -> None:
        moved.append(result.numel() * (20 if result.requires_grad else 8))

    norms = [m for m in step.model.modules() if isinstance(m, train_detector.UsualNorm)]
    hooks = [norm.register_forward_hook(count) for norm in norms]
    step()
    for hook in hooks:
        hook.remove()
    return sum(moved)


def projected(
    change: str, before: Version, peak: Peak, options: argparse.Namespace
) -> tuple[float, ...]:
    """Return the seconds of a step after `change`: none, one number, or from least to most."""
    steady, step = before.steady, training_of(before.changes, options)
    wall, spans = steady.wall, steady.spans

    def instead(seconds: float, gone: Callable[[Span], bool]) -> tuple[float, ...]:
        return (wall - least([span for span in spans if gone(span)]) + seconds,)

    if change == "frozen gradients":
        return instead(0.0, lambda s: s.phase == "backward" and s.module.startswith("frozen"))
    if change == "frozen norm":
        return instead(norm_bytes(step) / peak.bandwidth, of_norms)
    if change == "focal loss":
        moved = 12 * step.batches[0][1].numel()
        return instead(moved / peak.bandwidth, lambda s: s.module_class == "UsualLoss")
    if change == "optimizer":
        moved = 28 * sum(p.numel() for g in step.optimizer.param_groups for p in g["params"])
        return instead(moved / peak.bandwidth, lambda s: s.phase == "optimizer")
    if change == "channels last":
        return instead(0.0, lambda s: s.name == "reorder")
    if change == "enable":
        found = project(steady, options.threads, peak, options.seconds, Kept.at(None))
        return (found.expected("with `enable`"),)
    return ()


def profiled(step: Any, steps: int) -> Steady:
    with capture() as captured:
        for _ in range(steps):
            step()
    return steady_of(captured.profile)


def versions_of(options: argparse.Namespace, peak: Peak) -> list[tuple[Version, tuple[float, ...]]]:
    """Build, warm up and profile all versions, each with its projection from the one before."""
    found: list[tuple[Version, tuple[float, ...]]] = []
    kept: tuple[str, ...] = ()
    before: Version | None = None
    for change in ("as usually written", *train_detector.CHANGES):
        changes = (*kept, change) if before else kept
        worker = Worker(changes, options)
        worker.call("run", WARM)
        if change == "enable":
            number = worker.call("settle", options.settle)
            print(f"{number} steps to settle", file=sys.stderr, flush=True)
        promised = projected(change, before, peak, options) if before else ()
        steady = worker.call("profile", options.profiled)
        version = Version(change, changes, worker, steady)
        found.append((version, promised))
        if before is not None:
            version.kept, version.pairs = is_kept(before, version, options.pairs)
        kept_now = "kept" if version.kept else "not kept"
        told = f"{change}: {version.steady.wall:.2f} s profiled, {kept_now}"
        print(f"{told} after {version.pairs} pairs", file=sys.stderr, flush=True)
        if version.kept:
            kept, before = changes, version
    return found


def gain_of(before: Version, version: Version) -> float:
    """Return how many times as fast steps became, by the median over the rounds."""
    pairs = zip(before.times, version.times, strict=True)
    return statistics.median(old / new for old, new in pairs)


def run_in_turn(versions: Sequence[Version], rounds: int) -> None:
    for _ in range(rounds):
        for version in versions:
            version.times += version.worker.call("run", 1)


def is_kept(before: Version, version: Version, most: int) -> tuple[bool, int]:
    """Return whether a change gains, and the pairs of steps that this took, at most `most`.

    Without pairs, each change is kept. Each pair is in the opposite order of the one before it. Its
    times are not counted further.
    """
    lead = pairs = 0
    while abs(lead) < LEAD and pairs < most:
        order = (before, version) if pairs % 2 else (version, before)
        times = {one.change: one.worker.call("run", 1)[0] for one in order}
        lead += 1 if times[version.change] < times[before.change] else -1
        pairs += 1
    return lead == LEAD or most == 0, pairs


def table_of(found: Sequence[tuple[Version, tuple[float, ...]]]) -> str:
    first = before = found[0][0]
    rows = []
    for version, promised in found:
        gain, whole = gain_of(before, version), gain_of(first, version)
        promises = sorted({before.steady.wall / seconds for seconds in promised})
        rows.append(
            (
                version.change,
                f"{statistics.median(version.times):.3f}",
                "" if version is first else f"{gain:.2f}",
                " to ".join(f"{one:.2f}" for one in promises),
                " to ".join(f"{one / gain:.2f}" for one in promises),
                f"{whole:.2f}",
                f"{'yes' if version.kept else 'no'}, {version.pairs} pairs"
                if version.pairs
                else "",
                f"{100 * (version.steady.coverage or 0.0):.1f} %",
            )
        )
        if version.kept:
            before = version
    headings = (
        "change",
        "s a step",
        "gain",
        "projected",
        "time / projected",
        "whole",
        "kept",
        "coverage",
    )
    return "\n".join(columns(headings, rows))


def parts_of(version: Version) -> dict[str, float]:
    """Return the seconds of each phase: its share of the profile, of the measured step."""
    parts: dict[str, float] = {}
    for span in version.steady.spans:
        parts[span.phase] = parts.get(span.phase, 0.0) + span.self_seconds
    scale = statistics.median(version.times) / sum(parts.values())
    return {phase: seconds * scale for phase, seconds in parts.items()}


def main() -> None:
    """Profile, measure in turn, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=24, help="most pairs of a test; 0: none")
    parser.add_argument("--profiled", type=int, default=3, help="steps of a profile")
    parser.add_argument("--settle", type=int, default=200, help="most steps of `enable` before")
    parser.add_argument("--seconds", type=float, default=90.0, help="for the projection")
    parser.add_argument("--picture", type=Path)
    add_clock(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    peak = measure_peak()
    machine = f"{processor_name()}, {options.threads} threads, {peak.flops / 1e9:.0f} GFLOP/s"
    print(machine, flush=True)
    found = versions_of(options, peak)
    run_in_turn([version for version, _ in found], options.rounds)
    print(table_of(found))
    if options.picture:
        bars = [Bar(version.change, parts_of(version)) for version, _ in found]
        title = f"A detector's step after each change\n{machine}"
        draw_stacked_bars([bars], title, options.picture)


if __name__ == "__main__":
    main()
