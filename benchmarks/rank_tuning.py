"""What does tuning cost several ranks that train together, beside one?

    python benchmarks/rank_tuning.py [--model vgg16] [--width 16] [--batch 8] [--ranks 1 2 4]

Each number of ranks trains the same model with the same batch a rank, until nothing has been tried
for 20 steps. A tuning step is one in which a rank tried an alternative. Each step of
DistributedDataParallel waits for the slowest rank. The cost of tuning is the time of the tuning
steps beyond that of as many settled steps. It is printed in seconds, and in settled steps of the
same number of ranks. `apart` is the cost without agreement of the ranks.

The reach: the cost for the most ranks is at most 1.2 times that for one. It is judged in seconds if
each rank has a processor. Otherwise it is judged in settled steps: of four ranks on two processors,
each has half a processor, so each of the same trials takes it twice as many seconds, and so does a
settled step. Both ratios are always printed. The last line says which one counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from statistics import median
from time import perf_counter

from bestof.profile.recording.recorder import processor_name

EXAMPLES = Path(__file__).parent.parent / "examples"
REACH = 1.2
QUIET = 20  # steps without a trial
MOST = 600


def train(options: Namespace) -> None:
    """Train as one rank. Rank 0 writes the number, and the times, of the tuning steps."""
    sys.path.insert(0, str(EXAMPLES))
    import torch  # noqa: PLC0415 - the command that starts the ranks does without
    import train_ranks  # noqa: PLC0415 - as above
    from torch import distributed, nn  # noqa: PLC0415 - as above

    import bestof.torch as bt  # noqa: PLC0415 - as above
    from bestof.selection import report_all  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    bt.set_config({"ranks": {"enable": options.agree}})
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(train_ranks.build(options.model, options.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    inputs, labels = train_ranks.samples(options.model)(generator, options.batch)
    times: list[tuple[float, bool]] = []
    trials = quiet = 0
    while quiet < QUIET and len(times) < MOST:
        distributed.barrier()
        began = perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten()).backward()
        optimizer.step()
        seconds = perf_counter() - began
        now = sum(one.trials for one in report_all().selectors)
        told = torch.tensor([seconds, float(now > trials)])
        distributed.all_reduce(told, distributed.ReduceOp.MAX)
        trials, tuned = now, bool(told[1])
        times.append((float(told[0]), tuned))
        quiet = 0 if tuned else quiet + 1
    if distributed.get_rank() == 0:
        Path(options.times).write_text(json.dumps(times), encoding="utf-8")
    distributed.barrier()  # no rank exits before the times are written
    distributed.destroy_process_group()


def measure(options: Namespace, ranks: int, agree: bool) -> tuple[int, float, float]:
    """Return the tuning steps, their cost in seconds, and the seconds of a settled step."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "times")
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        sizes = ["--model", options.model, "--width", str(options.width)]
        told = [*sizes, "--batch", str(options.batch), "--times", str(file)]
        environment = {**os.environ, "BESTOF_STORE": "off", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *launcher, __file__, *told, *(["--agree"] if agree else [])],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        # PyTorch 2.13 sometimes aborts when a rank exits; rank 0 has written its times by then.
        if not file.exists():
            raise SystemExit(done.stderr)
        times = json.loads(file.read_text(encoding="utf-8"))
    settled = median(seconds for seconds, _ in times[-QUIET:])
    tuned = [seconds for seconds, tuned in times if tuned]
    return len(tuned), sum(tuned) - settled * len(tuned), settled


def main() -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="vgg16")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank's step")
    parser.add_argument("--ranks", nargs="+", type=int, default=(1, 2, 4), help="the first: one")
    parser.add_argument("--runs", type=int, default=3, help="of each, in turn; medians count")
    parser.add_argument("--agree", action="store_true", help="of a rank: with agreement")
    parser.add_argument("--times", help="of a rank: the file for its times")
    options = parser.parse_args()
    if options.times:
        train(options)
        return 0
    rows = [(ranks, True) for ranks in options.ranks] + [(options.ranks[-1], False)]
    found: dict[tuple[int, bool], list[tuple[int, float, float]]] = {row: [] for row in rows}
    for _ in range(options.runs):
        for row in rows:
            found[row].append(measure(options, *row))
    processors = len(os.sched_getaffinity(0))
    print(
        f"{processor_name()}, {processors} processors; {options.model}, width "
        f"{options.width}, {options.batch} samples a rank, medians of {options.runs} runs\n"
    )
    print("| ranks | tuning steps | cost, s | cost, settled steps | ms of a settled step |")
    print("|---|---|---|---|---|")
    costs, in_steps = {}, {}
    for row, values in found.items():
        steps, cost, settled = (median(one) for one in zip(*values, strict=True))
        costs[row] = cost
        in_steps[row] = median(one / step for _, one, step in values)
        name = f"{row[0]}" if row[1] else f"{row[0]}, apart"
        spread = f"{min(one for _, one, _ in values):.2f} to {max(one for _, one, _ in values):.2f}"
        counted = f"{in_steps[row]:.0f} | {1e3 * settled:.1f}"
        print(f"| {name} | {steps:.0f} | {cost:.2f} ({spread}) | {counted} |")
    first, last, apart = rows[0], rows[-2], rows[-1]
    if not costs[first] > 0:
        raise SystemExit("nothing was tried; pass a larger --width")
    for counted, cost in (("seconds", costs), ("settled steps", in_steps)):
        ratio, without = cost[last] / cost[first], cost[apart] / cost[first]
        print(f"\n{last[0]} ranks over {first[0]} in {counted}: {ratio:.2f}, apart {without:.2f}")
    shared = last[0] > processors
    judged = in_steps if shared else costs
    kept = judged[last] / judged[first] <= REACH
    print(
        f"\nThe reach of {REACH} is {'kept' if kept else 'MISSED'} in "
        + ("settled steps: ranks share processors" if shared else "seconds")
    )
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
