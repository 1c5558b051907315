"""Measure on this machine what the papers behind bestof compare, by bestof's own commands.

python benchmarks/results.py                    everything, into build/results: about 50 minutes
python benchmarks/results.py bestof-cifar       one of them
python benchmarks/results.py --quick            narrow networks, a few minutes: tries the commands

The same command again continues: what was measured stays. Delete the folder to measure anew.
`build/results/index.md` shows all of it.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from bestof.distribution import VERSION
from bestof.profile.peak import measure_peak
from bestof.selection.identity.host import machine
from bestof.whole_file import write_whole

HERE = Path(__file__).parent
ROOT = HERE.parent
# The layers of Theano's three tables, then some of AlexNet, VGG16 and ResNet34, as the options of
# `bestof bench conv` name them.
LAYERS = (
    *("i3x64x64,k128x7x7,b64", "i32x15x80,k64x5x5,b256", "i128x36x12,k64x6x3,b256"),
    *("i3x224x224,k64x11x11,b16,s4,p2", "i64x27x27,k192x5x5,b16,p2"),
    *("i192x13x13,k384x3x3,b16,p1", "i64x112x112,k128x3x3,b4,p1"),
    *("i256x14x14,k256x3x3,b16,p1", "i64x56x56,k64x1x1,b16"),
)

_FAILED = "It ended with status"  # the last line of the output of a command that failed


@dataclass(frozen=True)
class Step:
    """One command of bestof, as words. {folder} is the folder of results.

    quick: the command for a trial of minutes.
    """

    command: str
    quick: str

    def words(self, folder: Path, *, quick: bool) -> list[str]:
        return [
            one.format(folder=folder) for one in (self.quick if quick else self.command).split()
        ]


@dataclass(frozen=True)
class Result:
    """What one paper shows, and the commands that measure it here.

    minutes: how long they take on two cores.
    """

    name: str
    minutes: int
    shows: str
    steps: tuple[Step, ...]


def _models(name: str, models: str, options: str) -> Step:
    """Return the step that compares every static choice with the selector on some models."""
    command = f"bench model {models} --static {options} --keep {{folder}}/{name}.jsonl"
    command += f" --png {{folder}}/{name}.png"
    return Step(command, f"{command} --narrow --rounds 2 --seconds 0.1 --settle 5")


_PROFILE = "profile --keep {folder}/plain.json --picture {folder}/profile.png"
_PROJECT = (
    "project {folder}/plain.json --resume {folder}/projected.jsonl "
    "--picture {folder}/projection.png"
)
_RANKS = "--batch 32 examples/train_ranks.py --width 16 --batch {{batch}} --steps"
RESULTS = (
    Result(
        "bestof-cifar",
        15,
        "BestOf: VGG16 and ResNet34 on images of CIFAR-10, training. One algorithm for all "
        "layers, PyTorch, and the choice; by threads, and over the first steps.",
        (
            _models(
                "bestof-cifar",
                "vgg16-cifar resnet34",
                "--size 32 --train --batch 32 --threads 1,2 --steps 40 --rounds 5",
            ),
        ),
    ),
    Result(
        "bestof-imagenet",
        10,
        "BestOf: VGG16 and ResNet34 on images of ImageNet, training.",
        (
            # Eight processes hold VGG16, 2.2 GB each with its gradients in batches of 4.
            _models(
                "bestof-imagenet",
                "vgg16 resnet34",
                "--train --batch 2 --steps 30 --rounds 3 --settle 150",
            ),
        ),
    ),
    Result(
        "bestof-inference",
        12,
        "BestOf: the same networks in inference, one image and eight.",
        (
            _models("bestof-inference", "vgg16 resnet34", "--batch 1,8 --rounds 5 --settle 60"),
            _models(
                "cifar-inference",
                "vgg16-cifar resnet34",
                "--size 32 --batch 1,8 --rounds 5 --settle 60",
            ),
        ),
    ),
    Result(
        "theano",
        2,
        "Theano's meta-optimizer: every way to compute each pass of a layer, the swaps among them.",
        (
            Step(
                f"bench conv {' '.join(LAYERS)} --repeats 5",
                "bench conv i8x12x12,k8x3x3,b2,p1 --repeats 2",
            ),
        ),
    ),
    Result(
        "paddle",
        6,
        "PaddlePaddle: a whole training step tuned by one command.",
        (
            Step(
                "tune --seconds 420 --recipe {folder}/vgg16.json examples/train_vgg16.py",
                "tune --seconds 20 --recipe {folder}/vgg16.json examples/train_vgg16.py --steps 40",
            ),
        ),
    ),
    Result(
        "profilednn",
        5,
        "ProfileDNN: where the time of a step goes, how fast each of its problems could be, and "
        "how many processes of how many threads train fastest.",
        (
            Step(
                f"{_PROFILE} examples/train_vgg16.py --steps 6",
                f"{_PROFILE} examples/train_vgg16.py --steps 2",
            ),
            Step(f"{_PROJECT} --seconds 200", f"{_PROJECT} --seconds 5"),
            Step(f"scale --seconds 180 {_RANKS} 100000", f"scale --seconds 60 {_RANKS} 100000"),
        ),
    ),
)


def version() -> str:
    """Return the line that a file of results begins with: commit, date, processor and peak."""
    asked = ["git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty"]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    peak = measure_peak()
    return (
        f"Commit {found.stdout.strip() or 'unknown'}, {datetime.date.today()}, {machine()}, "
        f"peak {peak.flops / 1e9:.0f} GFLOP/s."
    )


def announcement(wanted: Sequence[Result], *, quick: bool) -> str:
    """Return the first lines: what will be measured, and how long it takes."""
    parts = ", ".join(one.name if quick else f"{one.name} {one.minutes}" for one in wanted)
    whole = "a few" if quick else f"about {sum(one.minutes for one in wanted)}"
    return (
        f"{whole} minutes on two cores: {parts}\n"
        "The same command continues after an interruption. Other programs disturb the times."
    )


def shown_command(step: Step, folder: Path, *, quick: bool) -> str:
    """Return the line of a command, as the output begins after its version."""
    words = " ".join(["bestof", *step.words(folder, quick=quick)])
    return f"$ {words}".replace(f"{folder}/", "")


def is_measured(step: Step, output: Path, folder: Path, *, quick: bool) -> bool:
    """Return whether the output of this very command is there, and the command succeeded."""
    if not output.exists():
        return False
    lines = output.read_text(encoding="utf-8").splitlines()
    failed = lines[-1].startswith(_FAILED)
    return shown_command(step, folder, quick=quick) in lines and not failed


def run(step: Step, output: Path, folder: Path, *, quick: bool) -> int:
    """Run one command, show and keep what it prints, and return its exit status.

    What a failed command printed is kept, too, and says so. The next run tries it again.
    """
    shown = shown_command(step, folder, quick=quick)
    print(shown, flush=True)
    began = monotonic()
    lines = [f"{version()}\n", f"{shown}\n"]
    with subprocess.Popen(
        [sys.executable, "-m", "bestof", *step.words(folder, quick=quick)],
        cwd=ROOT,
        env={**os.environ, "BESTOF_STORE": "off", "NO_COLOR": "1", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        except BaseException:
            process.terminate()  # an interrupt may have met this process alone
            raise
    status = process.returncode
    took = f"It took {(monotonic() - began) / 60:.1f} minutes."
    last = took if status == 0 else f"{_FAILED} {status}. {took}"
    print(last, flush=True)
    write_whole(output, "".join([*lines, f"{last}\n"]))
    return status


def measure(result: Result, folder: Path, *, quick: bool) -> list[str]:
    """Measure what is missing of a result. Return what failed."""
    failed = []
    for number, step in enumerate(result.steps):
        output = folder / f"{result.name}-{number}.txt"
        if is_measured(step, output, folder, quick=quick):
            continue
        status = run(step, output, folder, quick=quick)
        if status != 0:
            failed.append(f"{result.name}: command {number + 1} ended with status {status}")
    return failed


def page(folder: Path, *, quick: bool) -> str:
    """Return the page of all results that are there. Each tells its commit, as they may differ."""
    parts = [
        "# What the papers compare, measured here",
        f"bestof {VERSION}." + (" A trial of the commands, no result." * quick),
    ]
    for result in RESULTS:
        outputs = sorted(folder.glob(f"{result.name}-[0-9].txt"))
        if not outputs:
            continue
        parts.append(f"## {result.name}\n{result.shows}")
        parts += [f"```\n{one.read_text(encoding='utf-8').strip()}\n```" for one in outputs]
        words = [word for step in result.steps for word in step.words(folder, quick=quick)]
        stems = sorted(Path(word).stem for word in words if word.endswith(".png"))
        pictures = [one for stem in stems for one in sorted(folder.glob(f"{stem}*.png"))]
        parts += [f"![{one.stem}]({one.name})" for one in pictures]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    known = [one.name for one in RESULTS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "results")
    parser.add_argument("--quick", action="store_true", help="small: tries the commands")
    options = parser.parse_args()
    for name in options.names:
        if name not in known:
            parser.error(f"there is no result {name!r}; the results are {', '.join(known)}")
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [one for one in RESULTS if not options.names or one.name in options.names]
    print(announcement(wanted, quick=options.quick), flush=True)
    failed = []
    for number, result in enumerate(wanted, 1):
        about = "" if options.quick else f", about {result.minutes} minutes"
        print(f"\n[{number}/{len(wanted)}{about}] {result.shows}", flush=True)
        failed += measure(result, folder, quick=options.quick)
        text = page(folder, quick=options.quick)
        write_whole(folder / "index.md", text)
    print(f"{folder / 'index.md'} shows all of it")
    for fault in failed:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
