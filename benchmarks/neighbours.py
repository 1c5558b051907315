"""Which threads are best beside busy processes or in a quota: settings by hand, and bestof's?

    python benchmarks/neighbours.py                  beside 0 and 4 busy processes
    python benchmarks/neighbours.py --beside 4 --rounds 8 --seconds 20
    python benchmarks/neighbours.py --beside 0       started in a control group with a quota

Trains the VGG16 of the demo by PyTorch alone, so that threads are all that differs. Each setting
has a process of its own for some seconds, in turn. Prints the quartiles of a step and its mean,
which long steps raise. The reach: the mean is at most 1.3 of the best one by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from bestof.bench.neighbours import busy

REACH = 1.3
BY_HAND: dict[str, dict[str, str]] = {
    "default": {},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "OMP_WAIT_POLICY=active": {"OMP_WAIT_POLICY": "active"},
}
OURS = "bestof"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--beside", type=int, nargs="+", default=[0, 4], help="busy processes")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each setting in a round")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        print(json.dumps(train(options.inside, options.images, options.seconds)))
        return
    for count in options.beside:
        print(f"beside {count} busy processes: quartiles and mean of a step in ms", flush=True)
        with busy(count):
            means = measure(options)
        best = min(BY_HAND, key=lambda one: means[one])
        for one in ("default", OURS):
            ratio = means[one] / means[best]
            met = "met" if ratio <= REACH else "missed"
            print(f"{one}: {ratio:.2f} of {best}; reach {REACH}: {met}", flush=True)


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Return the mean step of each setting, and print it."""
    steps: dict[str, list[float]] = {one: [] for one in (*BY_HAND, OURS)}
    for _ in range(options.rounds):
        for one in steps:
            command = [sys.executable, __file__, "--inside", one]
            command += ["--images", str(options.images), "--seconds", str(options.seconds)]
            environment = os.environ | BY_HAND.get(one, {})
            done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
            steps[one] += json.loads(done.stdout)
    means = {one: statistics.mean(taken) for one, taken in steps.items()}
    for one, taken in steps.items():
        told = "".join(
            f"{1e3 * value:8.0f}" for value in (*statistics.quantiles(taken), means[one])
        )
        print(f"  {one:24}{told}   {len(taken)} steps", flush=True)
    return means


def train(setting: str, images: int, seconds: float) -> list[float]:
    """Return the seconds of each step; the first ones, and 2 seconds, are for warming up."""
    import torch  # noqa: PLC0415 - not in the process that starts the others

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    from train_vgg16 import vgg16  # noqa: PLC0415 - as above

    if setting == OURS:
        from bestof.torch.process.neighbours import Neighbours  # noqa: PLC0415 - as above
        from bestof.torch.process.threads import FittedThreads  # noqa: PLC0415 - as above

        FittedThreads().fit()
        Neighbours().watch()
    torch.manual_seed(0)
    model = vgg16(10)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x, y = torch.randn(images, 3, 32, 32), torch.randint(10, (images,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    began, warm = perf_counter(), 0
    while warm < 2 or perf_counter() < began + 2.0:
        step()
        warm += 1
    taken = []
    began = perf_counter()
    while len(taken) < 2 or perf_counter() < began + seconds:
        before = perf_counter()
        step()
        taken.append(perf_counter() - before)
    return taken


if __name__ == "__main__":
    main()
