"""How steady are decisions? Fresh tunings of one training, compared with each other.

    python benchmarks/steadiness.py --model vgg16 --threads 1
    python benchmarks/steadiness.py --bursts    beside processes that are busy every other second

Each tuning is a process without a store: it trains until all is chosen. Another process times each
row of each problem in many rounds: these times are the reference. A line then has, for each model:

    flips      of two tunings, the decisions that differ by more than a tie of 3 % in the reference
    large      the same beyond 10 %
    best       decisions within a tie of the best row
    regret     the time of all problems by what was chosen, over that by the best rows
    price      what tuning cost, of the run until all was chosen

Reaches, quiet and beside bursts: flips 1 and 4 %, regret 1.01 and 1.03.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

MODELS = ("vgg16", "resnet34", "transformer")
TIE = 0.03
LARGE = 0.1
REFERENCE = "rounds:rounds=15"
EXAMPLES = Path(__file__).parents[1] / "examples"
_BURST = (
    "import time\nwhile True:\n t = time.time()\n while time.time() - t < 1: pass\n time.sleep(1)"
)

Times = dict[str, dict[str, float]]  # seconds of each row, by problem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--tunings", type=int, default=20)
    parser.add_argument("--steps", type=int, default=400, help="the most steps of one process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bursts", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON too")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(tuned(options.model[0], options.steps, options.threads)))
        return
    from bestof.profile.recording.recorder import processor_name  # noqa: PLC0415 - not in children

    beside = "beside bursts" if options.bursts else "quiet"
    print(f"{processor_name()}; {options.threads} threads; {options.tunings} tunings, {beside}")
    for model in options.model or MODELS:
        times = started(model, options, BESTOF_POLICY=REFERENCE)["times"]
        with bursts(options.bursts):
            runs = [started(model, options) for _ in range(options.tunings)]
        figures = judged([run["chosen"] for run in runs], times)
        figures["price"] = median(run["price"] for run in runs)
        print(
            f"{model:<12} {figures['problems']:3.0f} problems  flips {figures['flips']:.1%}  "
            f"large {figures['large']:.1%}  best {figures['best']:.1%}  "
            f"regret {figures['regret']:.3f}  price {figures['price']:.1%}",
            flush=True,
        )
        if options.json:
            print(json.dumps({"model": model, **figures}), flush=True)


def started(model: str, options: argparse.Namespace, **environment: str) -> dict[str, Any]:
    """Return what a fresh process has found."""
    command = [sys.executable, __file__, "--inside", "--model", model]
    command += ["--steps", str(options.steps), "--threads", str(options.threads)]
    given = os.environ | {"BESTOF_STORE": "off"} | environment
    done = subprocess.run(command, env=given, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def tuned(model: str, steps: int, threads: int) -> dict[str, Any]:
    """Train until all is chosen. Return what was chosen, the times of rows, and the price."""
    import torch  # noqa: PLC0415 - not in the process that starts the others
    from settled import settle  # noqa: PLC0415 - as above

    import bestof.torch as bt  # noqa: PLC0415 - as above
    from bestof.selection import report_all, use_policy  # noqa: PLC0415 - as above

    torch.set_num_threads(threads)
    use_policy(os.environ.get("BESTOF_POLICY"))
    bt.enable()
    step, began = training(model), perf_counter()
    settle(step, steps)
    seconds = perf_counter() - began
    chosen, times = dict[str, str](), Times()
    for selector in report_all().selectors:
        for problem in selector.problems:
            if problem.decision is None or problem.source == "only":
                continue
            key = f"{selector.selector} {problem.problem}"
            chosen[key] = problem.decision
            rows = problem.alternatives
            times[key] = {row.name: row.seconds for row in rows if row.seconds is not None}
    return {"chosen": chosen, "times": times, "price": bt.summary().seconds_tuning / seconds}


def training(model: str) -> Callable[[], object]:
    """Return one step of a training."""
    sys.path.insert(0, str(EXAMPLES))
    import torch  # noqa: PLC0415 - as above
    import train_ranks  # noqa: PLC0415 - as above
    from torch import nn  # noqa: PLC0415 - as above

    torch.manual_seed(0)
    network = train_ranks.build(model, 64)
    inputs, labels = train_ranks.samples(model)(torch.Generator().manual_seed(0), 16)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs).flatten(0, -2), labels.flatten()).backward()
        optimizer.step()

    return step


def judged(runs: list[dict[str, str]], times: Times) -> dict[str, float]:
    """Return the figures of the decisions of several tunings, by times of reference."""

    def known(key: str, *names: str) -> bool:
        return all(name in times.get(key, {}) for name in names)

    pairs = [
        (times[key][one[key]], times[key][other[key]])
        for one, other in pairwise(runs)
        for key in one.keys() & other.keys()
        if known(key, one[key], other[key])
    ]
    regrets = [
        (times[key][name], min(times[key].values()))
        for run in runs
        for key, name in run.items()
        if known(key, name)
    ]

    def flips(beyond: float) -> float:
        return sum(max(pair) > (1 + beyond) * min(pair) for pair in pairs) / len(pairs)

    if not pairs:
        raise SystemExit("nothing was decided in two tunings: give --steps more")
    return {
        "problems": len(set().union(*runs)),
        "flips": flips(TIE),
        "large": flips(LARGE),
        "best": sum(mine <= (1 + TIE) * best for mine, best in regrets) / len(regrets),
        "regret": sum(mine for mine, _ in regrets) / sum(best for _, best in regrets),
    }


@contextmanager
def bursts(wanted: bool) -> Iterator[None]:
    """Keep all processors busy every other second."""
    count = os.cpu_count() or 1
    busy = [subprocess.Popen([sys.executable, "-c", _BURST]) for _ in range(count * wanted)]
    sleep(0.5)
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


if __name__ == "__main__":
    main()
