"""Is a selector safe under many threads? Prints a small table; exit status 1 if not.

`--threads N --seconds S`: N threads call a handful of selectors (plain, grouped, nested, checked,
forgetful, in a store on disk) at once, with alternatives that fail, go wrong and drift at random
moments; others report, flush, copy and drop selectors meanwhile. Every answer is compared with what
a function alone would give. Afterwards every problem must settle within so many calls, no trial may
be left open, and memory must be within its bounds. Threads switch every 10 microseconds, and their
clocks are fakes, so that races are reopened hundreds of times a second.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bestof import Alternative, BestOf, use_store
from bestof.selection.state.journal import DisqualificationEntry, DriftEntry
from bestof.selection.store.sqlite import SqliteStore
from bestof.selection.trials.trial import detours

PROBLEMS = 6
CALLS_TO_SETTLE = 20_000


class Machine:
    """A clock for each thread, moved by the alternatives that it calls, and weather that changes
    their times."""

    def __init__(self) -> None:
        self._local = threading.local()
        self.weather = [1.0, 1.0, 1.0]

    def clock(self) -> float:
        return float(getattr(self._local, "now", 0.0))

    def alternative(
        self, position: int, function: Callable[[int], int], fails: float = 0.0
    ) -> Callable[[int], int]:
        """Computes `function` in a time that depends on the weather; fails with a probability."""

        def called(x: int) -> int:
            self._local.now = self.clock() + self.weather[position] * (1.0 + 0.01 * random.random())
            if random.random() < fails:
                raise OSError("now and then")
            return function(x)

        return called


def twice(x: int) -> int:
    """What every alternative computes."""
    return 2 * x


def plain(machine: Machine, **options: Any) -> BestOf:
    """Three alternatives of `twice`."""
    pairs = [(name, machine.alternative(position, twice)) for position, name in enumerate("abc")]
    return BestOf("plain", pairs, lambda x: x % PROBLEMS, clock=machine.clock, **options)


def selectors(machine: Machine, store: SqliteStore) -> dict[str, BestOf]:
    """One of each kind, and functions that call it as a program would."""
    inner = plain(machine, policy="rounds:rounds=2")
    failing = [
        ("a", machine.alternative(0, twice)),
        Alternative("b", machine.alternative(1, twice, fails=1e-3)),
        ("c", machine.alternative(2, twice)),
    ]
    stages = [
        (name, [machine.alternative(position, lambda x, p=position: 10 * x + p) for _ in range(2)])
        for position, name in enumerate("abc")
    ]
    return {
        "plain": plain(machine),
        "stored": plain(machine, store=store),
        "forgetful": plain(machine, max_problems=4, store=store),
        "checked": BestOf(
            "checked",
            failing[::2],
            lambda x: x % PROBLEMS,
            clock=machine.clock,
            check=0.0,
            check_every=1,
        ),
        "failing": BestOf("failing", failing[:2], lambda x: x % PROBLEMS, 2, clock=machine.clock),
        "nested": BestOf(
            "nested",
            [("inner", inner), ("outer", machine.alternative(0, inner))],
            lambda x: x % PROBLEMS,
            2,
            clock=machine.clock,
        ),
        "group": BestOf("group", stages, lambda x: x % PROBLEMS, 2, clock=machine.clock),
    }


class Stress:
    """The threads, what they have done, and what went wrong."""

    def __init__(self, folder: Path) -> None:
        self.machine = Machine()
        self.store = SqliteStore(folder / "decisions.sqlite")
        self.selectors = selectors(self.machine, self.store)
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.passes: list[bool] = []  # of the group: whether one alternative answered both stages
        self.stop = threading.Event()
        self._lock = threading.Lock()

    def work(self, seed: int) -> None:
        """What one thread does until it is told to stop."""
        chance, done = random.Random(seed), Counter[str]()
        names = list(self.selectors)
        try:
            while not self.stop.is_set():
                name, x = chance.choice(names), chance.randrange(1000)
                self.call(name, x, chance.randrange(1, 200))
                done["calls"] += 1
                if chance.random() < 0.05:
                    self.machine.weather = [chance.choice((1.0, 2.0, 5.0)) for _ in range(3)]
                if chance.random() < 0.02:
                    self.look(chance.choice(names))
                    done["reports"] += 1
        except BaseException:
            self.wrong.append(traceback.format_exc())
        with self._lock:
            self.done.update(done)

    def call(self, name: str, x: int, times: int) -> None:
        """So many calls of one selector, compared with what they should give."""
        selector = self.selectors[name]
        for _ in range(times):
            if name == "group":
                first, second = selector(0, x), selector(1, x)
                if (first // 10, second // 10) != (x, x):
                    raise AssertionError(f"group: {first} and {second} for {x}")
                self.passes.append(first == second)
                continue
            self.compare(name, selector, x)

    def compare(self, name: str, selector: BestOf, x: int) -> None:
        """One call of a selector that is no group; what a settled alternative raises is the
        program's."""
        try:
            answer = selector(x)
        except OSError:
            if name == "failing":
                return
            raise
        if answer != 2 * x:
            raise AssertionError(f"{name}: {answer} for {x}")

    def look(self, name: str) -> None:
        """What a program may do beside calls."""
        selector = self.selectors[name]
        str(selector.report())
        selector.flush()
        selector.explain(3)
        again = copy.copy(selector)
        if name != "group":
            self.compare(name, again, 3)

    def settle(self) -> None:
        """After the storm every problem must settle."""
        self.machine.weather = [3.0, 1.0, 2.0]
        for name, selector in self.selectors.items():
            for x in range(PROBLEMS):
                for _ in range(CALLS_TO_SETTLE):
                    self.call(name, x, 1)
                    if selector.best_method_has_been_found(x):
                        break
                else:
                    self.wrong.append(f"{name}: problem {x} did not settle")
            if len(selector._knowledge.tunings) + len(selector._knowledge.decisions) > 2 * max(
                PROBLEMS, selector._knowledge._max_problems
            ):
                self.wrong.append(f"{name} remembers more than it may")
        if not all(
            self.passes
        ):  # every pass here is begun and finished by one thread, so none may be of two
            self.wrong.append(
                f"{self.passes.count(False)} of {len(self.passes)} passes were of two alternatives"
            )
        if detours:
            self.wrong.append(f"{len(detours)} trials were left open")


def storm(threads: int, seconds: float, seed: int) -> tuple[dict[str, str], list[str]]:
    """Let so many threads work for so long; what was done, and what went wrong."""
    use_store(None)
    sys.setswitchinterval(1e-5)
    with tempfile.TemporaryDirectory() as folder:
        stress = Stress(Path(folder))
        running = [
            threading.Thread(target=stress.work, args=(seed + number,)) for number in range(threads)
        ]
        for thread in running:
            thread.start()
        time.sleep(seconds)
        stress.stop.set()
        for thread in running:
            thread.join(60)
        if any(thread.is_alive() for thread in running):
            return {"threads": str(threads)}, ["a thread hangs"]
        stress.settle()
        entries = [entry for one in stress.selectors.values() for entry in one.journal.entries()]
        stress.store.close()
    return {
        "threads": str(threads),
        "bursts of calls": (
            f"{stress.done['calls']} in {seconds:g} s, beside {stress.done['reports']} reports"
        ),
        "settled calls": str(sum(one.settled_calls for one in stress.selectors.values())),
        "trials": str(sum(one.trials for one in stress.selectors.values())),
        "races reopened": (
            f"{sum(isinstance(entry, DriftEntry) for entry in entries)} of the last entries"
        ),
        "disqualified": str(sum(isinstance(entry, DisqualificationEntry) for entry in entries)),
        "passes of two": f"{stress.passes.count(False)} of {len(stress.passes)}",
        "what went wrong": str(len(stress.wrong)),
    }, stress.wrong


def main(argv: list[str] | None = None) -> int:
    """Run for as long as was asked; 0 if nothing went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # of disqualified alternatives
    rows, wrong = storm(options.threads, options.seconds, options.seed)
    for name, value in rows.items():
        print(f"{name:18} {value}")
    for text in wrong[:5]:
        print(text, file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
