"""Attacks bestof's files and processes, and counts the damage.

The exit status is 1 if anything is lost, crashes or waits. Without options, it runs as long as the
figures in docs/store.md say. Each option sets the amount of one kind of attack.
If a part raises, this is a bad figure, and the other parts still run. After `--minutes`, the run
ends with status 1 and says where it hangs. `--part` and `--skip` share the parts among processes:
"evicting" takes half of the time.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "benchmarks")]

import held  # noqa: E402  beside this file
import interrupted_plan  # noqa: E402
import interrupted_selector  # noqa: E402
import interrupted_store  # noqa: E402
import interrupted_switches  # noqa: E402
import interrupted_torch  # noqa: E402
import mutations  # noqa: E402
import plan_mutations  # noqa: E402
import reader_mutations  # noqa: E402
import shim  # noqa: E402
import signals  # noqa: E402
import store_stress  # noqa: E402

SCRIPTS = ("fork", "spawn", "threads", "torchscript", "vmap", "autocast", "ddp")


class Figures:
    """Prints figures as they come, and knows whether one of them is bad."""

    def __init__(self) -> None:
        self.bad = False

    def note(self, name: str, value: object, *, bad: bool = False) -> None:
        """Print one figure."""
        self.bad = self.bad or bad
        print(f"{name:44} {value}{'   <-- BAD' if bad else ''}", flush=True)

    def part(self, name: str, run: Callable[[], None]) -> None:
        """Run a part and print the seconds that it took; a part that raises is bad."""
        begin = time.perf_counter()
        try:
            run()
        except Exception:  # whatever it is: the figures of the other parts are wanted too
            self.note(name, traceback.format_exc(), bad=True)
        self.note(f"{name}: seconds", f"{time.perf_counter() - begin:.0f}")

    def stress(self, rows: dict[str, str]) -> None:
        """Print what store_stress found."""
        for name, value in rows.items():
            self.note(name, value, bad=name in store_stress.BAD and value != "0")

    def mutated(self, name: str, found: Counter[str]) -> None:
        """Print what became of mutated files."""
        for what, count in sorted(found.items()):
            self.note(f"{name}: {what}", count, bad=what.startswith("FAILED"))

    def lines(self, name: str, run: Callable[[], tuple[int, list[str]]]) -> None:
        """Print how many lines of a scenario were interrupted, and what that broke."""
        tried, found = run()
        self.note(f"interrupted lines of {name!r}", tried)
        for fault in found:
            self.note("fault", fault, bad=True)

    def waits(self, name: str, found: dict[str, Any]) -> None:
        """Print what calls waited, in milliseconds."""
        if "failed" in found:
            self.note(name, found["failed"], bad=True)
            return
        for what in ("asked", "waited", "late", "whole"):
            self.note(f"{name}: {what}, ms", found[what])
        self.note(f"{name}: calls above 5 ms", found["above"], bad=found["above"] != 0)
        self.note(f"{name}: seconds to close", f"{found['closing']:.2f}", bad=found["closing"] > 20)
        self.note(f"{name}: warnings", len(found["told"]), bad=len(found["told"]) > 2)
        self.note(f"{name}: tracebacks", found["traceback"] or 0, bad=bool(found["traceback"]))


def scripts(figures: Figures, folder: Path) -> None:
    """Run every script once."""
    for name in SCRIPTS:
        env = {**os.environ, "BESTOF_STORE": str(folder / f"{name}.own")}
        command = [sys.executable, str(HERE / "scripts" / f"{name}.py"), str(folder / name)]
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=600, check=False
            )
        except subprocess.TimeoutExpired:
            figures.note(f"script {name}", "did not end within 600 s", bad=True)
            continue
        good = done.returncode == 0 and done.stdout.endswith("ok\n")
        figures.note(f"script {name}", "ok" if good else done.stderr[-2000:], bad=not good)


def stores(figures: Figures, folder: Path, calls: int) -> None:
    """Measure what calls wait for stores that are held, or whose file system misbehaves."""
    figures.waits("free", held.waits(folder / "free", calls))
    figures.waits("locked for writers", held.waits(folder / "write", calls, hold="write"))
    figures.waits("locked for readers", held.waits(folder / "read", calls, hold="read"))
    library = shim.build(folder)
    if library is None:
        figures.note("file systems that misbehave", "skipped: no C compiler")
        return
    for mode in shim.MODES:
        found = held.waits(folder / mode, calls, library=library, mode=mode)
        figures.waits(f"file system {mode}", found)


def interrupted(figures: Figures, folder: Path, count: int, seed: int) -> None:
    """Send signals to calls and to processes."""
    found = signals.interrupt_calls(folder, count, seed)
    found |= signals.end_by_signal(folder, count // 20, seed)
    counted = ("signals", "decisions", "processes ended by a signal")
    for what, number in found.items():
        figures.note(what, number, bad=number != 0 and what not in counted)


def lines(figures: Figures, name: str, every: int) -> None:
    """Interrupt a scenario at every so many lines of the engine, and at every instruction."""
    for instructions in (False, True):
        tried, found = interrupted_selector.faults(
            name, instructions=instructions, every=every * (1 + 6 * instructions)
        )
        unit = "instructions" if instructions else "lines"
        figures.note(f"interrupted {unit} of {name!r}", tried)
        for fault in found:
            figures.note("fault", fault, bad=True)


def parts_by_line(every: int) -> Iterator[tuple[str, Callable[[], tuple[int, list[str]]]]]:
    """Yield the scenarios of stores, layers, switches and plans, the longer ones with fewer lines.

    A run of these takes 0.2 to 1.5 s, and has 250 to 25,000 lines.
    """
    for name in interrupted_store.SCENARIOS:
        yield f"{name} (store)", partial(interrupted_store.faults, name, every=every)
    for name in interrupted_torch.SCENARIOS:
        for stored in (False, True) if name in interrupted_torch.STORED else (False,):
            what = f"{name}, stored" if stored else name
            run = partial(interrupted_torch.faults, name, stored=stored)
            yield what, partial(run, every=5 * every)
            yield (
                f"{what}, engine too",
                partial(run, every=15 * every, chosen=interrupted_torch.in_bestof),
            )
    for name in interrupted_switches.SCENARIOS:
        yield f"{name} (switch)", partial(interrupted_switches.faults, name)
    for name in interrupted_plan.SCENARIOS:
        yield f"{name} (plan)", partial(interrupted_plan.faults, name, every=15 * every)


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; 0 if nothing was bad."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--writers", type=int, default=200)
    parser.add_argument("--mutations", type=int, default=10_000, help="of each kind of file")
    parser.add_argument("--signals", type=int, default=2000)
    parser.add_argument("--every", type=int, default=7, help="line of the engine is interrupted")
    parser.add_argument("--calls", type=int, default=500, help="whose wait is measured, a store")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=90.0, help="at most")
    parser.add_argument("--no-scripts", action="store_true")
    parser.add_argument(
        "--part", action="append", help="only parts with this text in their names, for example plan"
    )
    parser.add_argument("--skip", action="append", default=[], help="no parts with this text")
    options = parser.parse_args(argv)
    os.environ.setdefault("BESTOF_STORE", "off")
    os.environ["BESTOF_STORE_WAIT"] = "60"  # but for the waits that are measured
    faulthandler.dump_traceback_later(60 * options.minutes, exit=True)
    figures, begin = Figures(), time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: dict[str, Callable[[], None]] = {
            "held stores": lambda: stores(figures, folder / "held", options.calls),
            "kills": lambda: figures.stress(
                store_stress.massacre(folder, options.kills, options.seed)
            ),
            "writers": lambda: figures.stress(store_stress.crowd(folder, options.writers, 10)),
            "signals": lambda: interrupted(
                figures, folder / "signals", options.signals, options.seed
            ),
        }
        for scenario in interrupted_selector.SCENARIOS:
            parts[f"interrupted: {scenario}"] = lambda name=scenario: lines(
                figures, name, options.every
            )
        for what, one in parts_by_line(options.every):
            parts[f"interrupted: {what}"] = lambda what=what, one=one: figures.lines(what, one)
        for kind in (
            *(mutations.stores, mutations.rows, mutations.lock_files, mutations.plans),
            *(plan_mutations.plan_graphs, reader_mutations.readers),
        ):
            place = folder / kind.__name__
            place.mkdir()
            parts[f"mutated {kind.__name__}"] = lambda kind=kind, place=place: figures.mutated(
                kind.__name__, kind(place, options.mutations, options.seed)
            )
        if not options.no_scripts:
            parts["scripts"] = lambda: scripts(figures, folder / "held")
        (folder / "held").mkdir()
        (folder / "signals").mkdir()
        wanted = [
            what
            for what in parts
            if (options.part is None or any(text in what for text in options.part))
            and not any(text in what for text in options.skip)
        ]
        if not wanted:
            parser.error(f"no part is left; the parts are: {', '.join(parts)}")
        for what in wanted:
            figures.part(what, parts[what])
    faulthandler.cancel_dump_traceback_later()
    figures.note("seconds in all", f"{time.perf_counter() - begin:.0f}")
    return int(figures.bad)


if __name__ == "__main__":
    sys.exit(main())
