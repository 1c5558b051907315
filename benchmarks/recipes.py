"""Is a script that `bestof tune` has tuned ever slower than before, or than `bt.enable()` alone?

    python benchmarks/recipes.py --folder tuned                   every program, then the table
    python benchmarks/recipes.py --folder tuned resnet34 --seconds 240
    python benchmarks/recipes.py --folder tuned --table           what the folder holds

First, `bestof tune` writes a recipe. Then three runs of the script take turns: as it is, with the
recipe, and with `bt.enable()` alone. In each round each has a turn of half a second or three steps,
while the others wait. A ratio is the median over the rounds, with its 95 % interval. The reach: the
recipe is as fast as the script as it is, and as with `bt.enable()` alone. A ratio misses it if its
interval lies below 1.

`--folder` keeps recipes and times. If `--seconds` are up before a recipe is complete, what it has
kept so far is measured, and the same command continues it. The folder also has the store of
decisions, so the default store stays as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic

from bestof.cli.tune_command import trial_command
from bestof.profile.recording.recorder import processor_name
from bestof.recipe.contestant import Contestant
from bestof.recipe.parts import ENABLED
from bestof.recipe.recipe import read_recipe
from bestof.recipe.settings import Settings
from bestof.selection.policies.paired import Speedup, speedup

HERE = Path(__file__).parent
NETWORKS = str(HERE / "recipe_programs.py")
EXAMPLES = HERE.parent / "examples"
ENDLESS = ("--steps", "1000000")
PROGRAMS = {
    "vgg16-cifar": [str(EXAMPLES / "train_vgg16.py"), *ENDLESS],
    "vgg16": [NETWORKS, "vgg16", "--batch", "1"],
    "resnet34": [NETWORKS, "resnet34", "--batch", "2"],
    "mobilenet_v2": [NETWORKS, "mobilenet_v2", "--batch", "4"],
    "transformer": [str(EXAMPLES / "train_transformer.py"), *ENDLESS],
    "photographs": [NETWORKS, "photographs"],
}


def tune(script: list[str], recipe: Path, seconds: float) -> None:
    """Begin or continue a recipe."""
    command = [sys.executable, "-m", "bestof", "tune", "--recipe", str(recipe)]
    subprocess.run([*command, "--seconds", str(seconds), *script], check=True)


def times_in_turn(
    script: list[str], tried: dict[str, Settings], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of a step of each, one for each round."""
    running = {
        name: Contestant(settings, partial(trial_command, script))
        for name, settings in tried.items()
    }
    times: dict[str, list[float]] = {name: [] for name in tried}
    try:
        for one in running.values():
            for _ in range(20):  # until nothing more is tried
                trials = one.trials
                one.turn(monotonic() + 600)
                if trials == one.trials:
                    break
        for number in range(rounds):
            names = list(running)
            turned = number % len(names)  # who follows whom changes
            for name in names[turned:] + names[:turned]:
                times[name].append(running[name].turn(monotonic() + 600))
    finally:
        for one in running.values():
            one.close()
    return times


def measure(name: str, folder: Path, seconds: float, rounds: int) -> None:
    recipe = folder / f"{name}.json"
    if seconds > 0:
        tune(PROGRAMS[name], recipe, seconds)
    settings = read_recipe(recipe).settings
    tried = {"script": Settings(), "recipe": settings, "enable": Settings(**ENABLED)}
    times = times_in_turn(PROGRAMS[name], tried, rounds)
    told = {"settings": settings.changes(), "times": times}
    (folder / f"{name}.times").write_text(json.dumps(told), encoding="utf-8")


def ratio(times: dict[str, list[float]], slower: str, faster: str) -> Speedup:
    found = speedup([a / b for a, b in zip(times[slower], times[faster], strict=True)])
    assert found is not None, "at least six rounds are needed"
    return found


def print_table(folder: Path) -> bool:
    """Print what the folder holds. Return whether all of it keeps the reach."""
    processors = len(os.sched_getaffinity(0))
    print(f"{processor_name()}, {processors} processors; ms a step, medians of the rounds\n")
    print("| program | script | enable | recipe | over the script | over enable | settings |")
    print("|---|---|---|---|---|---|---|")
    kept = True
    for name in PROGRAMS:
        file = folder / f"{name}.times"
        if not file.exists():
            continue
        told = json.loads(file.read_text(encoding="utf-8"))
        times = told["times"]
        found = [ratio(times, other, "recipe") for other in ("script", "enable")]
        kept &= all(one.high >= 1 for one in found)
        shown = [f"{1e3 * median(times[one]):.1f}" for one in ("script", "enable", "recipe")]
        shown += [f"{one.median:.3f} ({one.low:.3f} to {one.high:.3f})" for one in found]
        changes = (f"{key}={json.dumps(value)}" for key, value in told["settings"].items())
        print(f"| {name} | {' | '.join(shown)} | {', '.join(changes) or 'none'} |")
    print(f"\nthe reach is {'kept' if kept else 'MISSED'}")
    return kept


def main() -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--folder", type=Path, required=True, help="keeps recipes and times")
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="of `bestof tune`, each; 0: none"
    )
    parser.add_argument("--rounds", type=int, default=12, help="at least 6")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    options = parser.parse_args()
    unknown = set(options.programs) - set(PROGRAMS)
    if unknown or options.rounds < 6:
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "--rounds: at least 6")
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["BESTOF_STORE"] = str((options.folder / "decisions.sqlite").absolute())
    if not options.table:
        for name in options.programs or PROGRAMS:
            measure(name, options.folder, options.seconds, options.rounds)
    return int(not print_table(options.folder))


if __name__ == "__main__":
    sys.exit(main())
