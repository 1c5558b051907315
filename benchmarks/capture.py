"""What does a capture cost, what does it explain, and does a projection come true?

All rows are about a training step of a ResNet of pytorchcv, with medians and ranges:

    coverage       the share of a steady step's wall time that lines and operations explain: plain,
                   with `enable` when it has settled, and of a fused inference plan
    cost           a captured step over the one before it, --rounds pairs
    time/projected --rounds steps with `enable`, over what `bestof project` promised by the plain
                   profile. The promise is a range, hot and cold, and `expected` lies where the
                   observed calls were in this range. A promise adds up least times, as the steady
                   step of the profile does. The row `as a gain` scales it by the plain steps over
                   the profile's. The row `least times` compares the least step with `enable`.
                   `enable` tells glibc to keep freed memory, which also serves plain steps after
                   it, so these are timed before

    python benchmarks/capture.py
    python benchmarks/capture.py --threads 1 --cpu-time      # on a busy machine
    python benchmarks/capture.py --model resnet18 --rounds 3 --settle 5 --seconds 5
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from in_turn import add_clock
from pytorchcv.models import resnet
from settled import settle
from torch.nn import functional

import bestof.torch as bt
from bestof.profile import Profile, capture
from bestof.profile.peak import measure_peak
from bestof.profile.projection.measured import Kept
from bestof.profile.projection.projection import Projection, project
from bestof.profile.recording.recorder import processor_name
from bestof.profile.steady import steady_of

CEILING = "with `enable`"


def profile_of(step: Callable[[], object], steps: int) -> Profile:
    with capture() as captured:
        for _ in range(steps):
            step()
    return captured.profile


def print_row(what: str, reach: str, values: Sequence[float], unit: str = " %") -> None:
    numbers = f"{median(values):.2f}{unit} ({min(values):.2f} to {max(values):.2f})"
    print(f"{what:28} {reach:12} {numbers}", flush=True)


def print_coverage(what: str, found: Sequence[Profile]) -> None:
    """Print the coverage over several profiles, and the lines that were not understood."""
    print_row(
        f"coverage, {what}", "98 %", [100 * (steady_of(one).coverage or 0.0) for one in found]
    )
    lines, unknown = sum(one.lines for one in found), sum(one.unknown for one in found)
    alone = sum(one.unattributed for one in found)
    if unknown or alone:
        print(f"    of {lines} lines, {unknown} not understood, {alone} without an operation")


def costs_of(
    step: Callable[[], object], rounds: int, clock: Callable[[], float]
) -> list[tuple[float, float]]:
    """Return the seconds of a plain step and of a captured one, a pair a round."""
    pairs = []
    for _ in range(rounds):
        begin = clock()
        step()
        middle = clock()
        with capture():
            step()  # hooks and buffers are made at the first step
            captured = clock()
            step()
            ended = clock()
        pairs.append((middle - begin, ended - captured))
    return pairs


def print_costs(pairs: Sequence[tuple[float, float]]) -> None:
    """Print the cost of a capture in percent of the step before it, and of the least times."""
    costs = [100 * (captured / plain - 1) for plain, captured in pairs]
    print_row("cost of a capture", "below 10 %", costs)
    plain, captured = (min(times) for times in zip(*pairs, strict=True))
    print(f"    least times: {plain:.3f} s plain, {captured:.3f} s captured")


def times_of(step: Callable[[], object], rounds: int, clock: Callable[[], float]) -> list[float]:
    times = []
    for _ in range(rounds):
        begin = clock()
        step()
        times.append(clock() - begin)
    return times


def print_projected(done: Projection, plain: Sequence[float], enabled: Sequence[float]) -> None:
    """Print what the projection promised, and the time with `enable` over it."""
    print(
        f"    {done.coverage:.0%} of the step replayed; {median(plain):.3f} s a plain step, "
        f"{done.wall:.3f} s in its profile, {median(enabled):.3f} s with `enable`, "
        f"{done.expected(CEILING):.3f} s expected"
    )
    rest = done.wall - done.replayed(CEILING)
    steps = {
        "expected": done.expected(CEILING),
        "as a gain": done.expected(CEILING) * median(plain) / done.wall,
        "hot": rest + done.projected(CEILING, cold=False),
        "cold": rest + done.projected(CEILING, cold=True),
    }
    for name, seconds in steps.items():
        row = f"time / projected, {name}"
        print_row(row, "0.9 to 1.1", [one / seconds for one in enabled], "")
    print_row("time / projected, least times", "0.9 to 1.1", [min(enabled) / steps["expected"]], "")


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50", help="a name of pytorchcv.models.resnet")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=4, help="steps of a profile")
    parser.add_argument("--profiles", type=int, default=3, help="profiles of each kind")
    parser.add_argument("--settle", type=int, default=200, help="most steps of `enable` before")
    parser.add_argument("--seconds", type=float, default=120.0, help="for the projection")
    add_clock(parser)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = options_of()
    clock = time.process_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = getattr(resnet, options.model)()
    x = torch.randn(options.batch, 3, 224, 224)
    labels = torch.arange(options.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    def profiles(one: Callable[[], object], steps: int) -> list[Profile]:
        return [profile_of(one, steps) for _ in range(options.profiles)]

    print(f"{processor_name()}, {options.threads} threads, {options.model}", flush=True)
    for _ in range(2):
        step()
    plain = profiles(step, options.steps)
    print_coverage("plain", plain)
    print_costs(costs_of(step, options.rounds, clock))
    times = times_of(step, options.rounds, clock)
    least = min((steady_of(one) for one in plain), key=lambda one: one.wall)
    done = project(least, options.threads, measure_peak(), options.seconds, Kept.at(None))
    with bt.enabled():
        steps = settle(step, options.settle)
        print(f"    {steps} steps to settle, of at most {options.settle}", flush=True)
        print_coverage("with `enable`", profiles(step, options.steps))
        print_projected(done, times, times_of(step, options.rounds, clock))
    plan = bt.optimize(model.eval(), (x,))
    with torch.no_grad():
        plan(x)
        print_coverage("of a plan", profiles(lambda: plan(x), 2 * options.steps))


if __name__ == "__main__":
    main()
