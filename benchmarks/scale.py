"""Does `bestof scale` choose the fastest split, and what does PyTorch's own launcher reach?

    python benchmarks/scale.py [--rounds 12] [--seconds 300] [--model vgg16] [--width 16]

First, `bestof scale` chooses for `examples/train_ranks.py`. Then all splits run by hand, and
`python -m torch.backends.xeon.run_cpu`, which starts one process on all cores. In each round all of
them take a turn of half a second, one after the other, while the others wait. So a machine that
slows down slows all. The ratio of a row is the median over the rounds of its time to that of the
fastest row by hand, in the same round. The reach: the choice of `bestof scale` is within 3 % of the
fastest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic

from bestof.cli.scale_command import trial_command
from bestof.processors import processors
from bestof.recipe.contestant import Contestant
from bestof.scale.cores import cores
from bestof.scale.split import splits

HERE = Path(__file__).parent
SCRIPT = HERE.parent / "examples" / "train_ranks.py"
PEER = "run_cpu"
REACH = 1.03


def processor_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "an unknown processor")


def script_of(options: Namespace, batch: str) -> list[str]:
    arguments = ("--model", options.model, "--width", str(options.width), "--steps", "1000000")
    return [str(SCRIPT), *arguments, "--batch", batch]


def chosen(options: Namespace) -> str:
    """Return the name of the split that `bestof scale` finds."""
    command = [sys.executable, "-m", "bestof", "scale", "--json", "--seconds", str(options.seconds)]
    done = subprocess.run(
        [*command, "--batch", str(options.batch), *script_of(options, "{batch}")],
        stdout=subprocess.PIPE,
        check=True,
    )
    return str(json.loads(done.stdout)["best"])


def contestants(options: Namespace) -> dict[str, Contestant[object]]:
    """Return all splits by name, and the peer."""
    script = script_of(options, "{batch}")
    found: dict[str, Contestant[object]] = {
        split.name: Contestant(split, partial(trial_command, script, {}))
        for split in splits(cores(processors()), options.batch)
    }

    def peer(_: object, orders: int, reports: int) -> list[str]:
        launcher = [sys.executable, "-m", "torch.backends.xeon.run_cpu"]
        wrapper = [str(HERE / "timed_under.py"), str(orders), str(reports)]
        return [*launcher, *wrapper, *script_of(options, str(options.batch))]

    return {**found, PEER: Contestant(None, peer)}


def times_in_turn(options: Namespace) -> dict[str, list[float]]:
    """Return the seconds of a step of each, one for each round."""
    running = contestants(options)
    times: dict[str, list[float]] = {name: [] for name in running}
    try:
        for number in range(options.rounds + 1):
            names = list(running)
            turned = number % len(names)  # who follows whom changes
            for name in names[turned:] + names[:turned]:
                seconds = running[name].turn(monotonic() + 600)
                if number:  # the first round warms up
                    times[name].append(seconds)
    finally:
        for one in running.values():
            one.close()
    return times


def print_table(times: dict[str, list[float]], choice: str, options: Namespace) -> None:
    by_hand = {name: median(taken) for name, taken in times.items() if name != PEER}
    fastest = min(by_hand, key=lambda name: by_hand[name])
    print(
        f"{processor_name()}, {len(os.sched_getaffinity(0))} processors; {options.model}, width "
        f"{options.width}, {options.batch} images a step, {options.rounds} rounds in turn"
    )
    print("split     s/step  least to most     to the fastest")
    for name, taken in times.items():
        ratio = median(a / b for a, b in zip(taken, times[fastest], strict=True))
        told = "  <- bestof scale" if name == choice else ""
        spread = f"{min(taken):.4f} to {max(taken):.4f}"
        print(f"{name:8}  {median(taken):.4f}  {spread:16}  {ratio:.3f}{told}")
    ratio = median(a / b for a, b in zip(times[choice], times[fastest], strict=True))
    print(
        f"the choice takes {ratio:.3f} times as long as the fastest, {fastest}; "
        f"the reach of {REACH} is {'kept' if ratio <= REACH else 'MISSED'}"
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=300.0, help="of `bestof scale`")
    parser.add_argument("--model", default="vgg16")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32, help="images of a step of all ranks")
    options = parser.parse_args()
    choice = chosen(options)
    print_table(times_in_turn(options), choice, options)


if __name__ == "__main__":
    main()
