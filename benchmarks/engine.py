"""Does the selection engine reach what it is to reach? Prints the table, measured beside reach;
exit status 1 if not.

    python benchmarks/engine.py [costs] [locks] [decisions] [store] [--seed 7] [--repeats 100]
    [--quick]

Each row names the command that shows more of it. Times need a machine that does nothing else.
`--quick` runs every row for a moment, to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import policies
import store_stress

from bestof import BestOf
from bestof.bench.dispatch import THREADS
from bestof.selection.policies import Race, Rounds

PARTS = ("costs", "locks", "decisions", "store")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    reach: str
    measured: str
    reached: bool
    command: str


class CountingLock:
    """A lock that counts how often it was taken, and how often somebody had to wait for it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.taken = self.waited = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Count, and take it."""
        self.taken += 1
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        self.waited += 1
        return bool(self._lock.acquire(blocking, timeout))

    def release(self) -> None:
        """Give it back."""
        self._lock.release()

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def decisions(seed: int, repeats: int) -> Iterator[Row]:
    """What the default policy decides on recorded and synthetic traces."""
    command = f"policies.py --seed {seed} --repeats {repeats}"
    folder = Path(__file__).parent / "traces"
    traces = [*policies.recorded(folder, seed), *policies.synthetic(3, seed)]
    raced = [(trace, policies.replay(Race(), trace, repeats, seed)) for trace in traces]
    good = 100 * float(np.mean([policies.good(trace, outcome) for trace, outcome in raced]))
    yield Row("decisions within 2 % of the best, %", ">= 99", f"{good:.2f}", good >= 99.0, command)
    few = [(trace, outcome) for trace, outcome in raced if len(trace.truth) in policies.FEW]
    good = 100 * float(np.mean([policies.good(trace, outcome) for trace, outcome in few]))
    by_rounds = [policies.replay(Rounds(), trace, repeats, seed) for trace, _ in few]
    peer = 100 * float(
        np.mean([policies.good(trace, o) for (trace, _), o in zip(few, by_rounds, strict=True)])
    )
    ratio = float(
        np.mean([np.mean(o.regret) for _, o in few])
        / np.mean([np.mean(o.regret) for o in by_rounds])
    )
    yield Row(
        "regret of Race against Rounds(10), 2 to 6",
        "<= 0.40",
        f"{ratio:.3f}",
        ratio <= 0.4,
        command,
    )
    yield Row(
        "  within 2 %, against Rounds, %", f">= {peer:.2f}", f"{good:.2f}", good >= peer, command
    )
    clear = [policies.steady(outcome) == 1.0 for trace, outcome in raced if trace.clear]
    yield Row(
        f"traces alike in {repeats} of {repeats} runs, gap > 5 %",
        f"{len(clear)} of {len(clear)}",
        f"{sum(clear)} of {len(clear)}",
        all(clear),
        command,
    )


def costs(repeats: int, calls: int) -> Iterator[Row]:
    """What calls cost beyond what they call."""
    # A process of its own, as a user runs it: here NumPy's objects would make every collection of
    # garbage longer.
    command = [sys.executable, "-m", "bestof", "bench", "dispatch", "--json"]
    options = ["--repeats", str(repeats), "--calls", str(calls)]
    ran = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    for row in json.loads(ran.stdout):
        if row["reach"] is not None:
            measured = (
                f"{row['seconds'] * 1e9:,.0f}, with {THREADS} threads {row['threaded'] * 1e9:,.0f}"
            )
            reached = row["seconds"] <= row["reach"]
            yield Row(
                f"{row['name']}, ns",
                f"<= {row['reach'] * 1e9:,.0f}",
                measured,
                reached,
                "bestof bench dispatch",
            )


def locks(calls: int) -> Iterator[Row]:
    """Whether threads that make settled calls wait for each other."""
    pairs = [(name, lambda x: x) for name in ("first", "second")]
    selector = BestOf("locks", pairs, lambda x: x, policy=Rounds(), store="off", drift=True)
    while not selector.best_method_has_been_found(1):
        selector(1)
    selector(1)
    lock = CountingLock(selector._knowledge.lock)
    selector._knowledge.lock = lock  # type: ignore[assignment]
    before = selector.settled_calls

    def work() -> None:
        for _ in range(calls):
            selector(1)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settled = selector.settled_calls - before
    yield Row(
        f"{THREADS} threads, waits for a lock in {settled:,} calls",
        "0",
        f"{lock.waited} (and {lock.taken} samples tried it)",
        lock.waited == 0 and settled > 0,
        "engine.py",
    )


def crowds(processes: int, kills: int) -> Iterator[Row]:
    """What processes that write at once, or die, do to a store."""
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder:
        found = store_stress.crowd(Path(folder), processes, 10)
        found |= store_stress.quorum(Path(folder), processes, 50)
        wrong = (
            "processes that failed",
            "records lost",
            "selectors that failed",
            "problems undecided",
        )
        command = f"store_stress.py --processes {processes} --selectors {processes}"
        for name in wrong:
            yield Row(
                f"{processes} processes on one store: {name}",
                "0",
                found[name],
                found[name] == "0",
                command,
            )
        found = store_stress.massacre(Path(folder), kills, seed=1)
        for name in ("decisions lost", "stores that did not open"):
            row = f"kill -9, {kills} times: {name}"
            yield Row(row, "0", found[name], found[name] == "0", f"store_stress.py --kills {kills}")


def main(argv: list[str] | None = None) -> int:
    """Measure and print, row by row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them by default"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=100, help="runs of each trace")
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(argv)
    if not set(options.parts) <= set(PARTS):
        parser.error(f"expected parts among {', '.join(PARTS)}; got {' '.join(options.parts)}")
    if options.quick:
        options.repeats, options.processes, options.kills = 1, 4, 4
    rows = {
        "costs": costs(*(2, 800) if options.quick else (25, 8000)),
        "locks": locks(1000 if options.quick else 200_000),
        "decisions": decisions(options.seed, options.repeats),
        "store": crowds(options.processes, options.kills),
    }
    missed = 0
    print(f"{'':56} {'reach':>12} {'measured':>34}  {'':6} command")
    for part in options.parts or PARTS:
        for row in rows[part]:
            missed += not row.reached
            word = "" if row.reached else "missed"
            print(
                f"{row.what:56} {row.reach:>12} {row.measured:>34}  {word:6} {row.command}",
                flush=True,
            )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
