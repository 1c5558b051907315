"""Is the store safe under many writers, and under processes that die? Prints a small table; exit
status 1 if not.

`--processes N`: N processes begin to write at the same moment, each its own problems and its own
evidence in shared ones; nothing may be lost, no error or warning raised. `--kills N`: a writer is
killed (SIGKILL) N times at a random moment; the store must open every time without a warning, and
hold every decision that was flushed. `--selectors N`: N processes decide the same problems at once
by a selector each; every problem must end with the right decision. `--problems N`: one process
meets and decides N problems in one loop; prints the processor time of a problem in the first and in
the last tenth, which must not grow. `--seconds S`: the first three, again and again for so long,
small.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from bestof import BestOf
from bestof.selection.store.record import Evidence, Record
from bestof.selection.store.sqlite import SqliteStore

PATIENCE = 60.0  # seconds: 200 processes at once wait less than 10
HOST = "any processor; 2 cpus"
SHARED = "shared problem {}"
# The rows that must be nought.
BAD = (
    *("processes that failed", "records lost", "decisions lost", "stores that did not open"),
    *("selectors that failed", "problems undecided", "problems lost"),
)


def forked(work: Callable[[], None]) -> int:
    """Run `work` in a child; its process id. The child's exit status is 1 where it raised or
    warned."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            warnings.simplefilter("error")
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def made(folder: Path) -> Path:
    """Return the folder after making it."""
    folder.mkdir(parents=True)
    return folder


def evidence(name: str) -> Evidence:
    """What a race of ten trials leaves."""
    return Evidence(name, "1", tuple(0.001 * (trial + 1) / 3 for trial in range(10)))


def write_many(path: Path, number: int, saves: int) -> None:
    """One of the writers: its own problems, and its own alternative in every shared problem."""
    store = SqliteStore(path)
    for save in range(saves):
        pair = tuple(evidence(name) for name in ("direct", "im2row"))
        store.save(Record("conv2d", f"({number}, {save})", HOST, "im2row", pair, time.time()))
        store.save(
            Record(
                "conv2d", SHARED.format(save), HOST, "a0", (evidence(f"a{number}"),), time.time()
            )
        )
    assert store.flush(PATIENCE)
    store.close()


def crowd(folder: Path, processes: int, saves: int) -> dict[str, str]:
    """Let `processes` write at once; what was found."""
    path = made(folder / "crowd") / "decisions.sqlite"
    gate_read, gate_write = os.pipe()

    def work(number: int) -> None:
        os.close(gate_write)
        os.read(gate_read, 1)  # returns when the parent closes the gate
        write_many(path, number, saves)

    children = [forked(lambda number=number: work(number)) for number in range(processes)]
    os.close(gate_read)
    begin = time.perf_counter()
    os.close(gate_write)
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    seconds = time.perf_counter() - begin
    store = SqliteStore(path)
    found = {record.key: record for record in store.records()}
    store.close()
    lost = 0
    for save in range(saves):
        for number in range(processes):
            own = found.get(("conv2d", f"({number}, {save})", HOST))
            lost += own is None or own.decision != "im2row" or len(own.evidence) != 2
        shared = found.get(("conv2d", SHARED.format(save), HOST))
        lost += processes if shared is None else processes - len(shared.evidence)
    total = 2 * processes * saves
    return {
        "processes at once": str(processes),
        "saves": f"{total} in {seconds:.1f} s ({seconds / total * 1e6:.0f} us a save)",
        "processes that failed": str(failed),
        "records lost": str(lost),
    }


def taking(now: list[float], seconds: float) -> Callable[[int], int]:
    """Return an alternative that moves the clock `now` by `seconds`."""

    def called(problem: int) -> int:
        now[0] += seconds
        return problem

    return called


def quorum(folder: Path, processes: int, problems: int) -> dict[str, str]:
    """Let `processes` decide the same problems, each by its own calls; what the store says then."""
    path = made(folder / "quorum") / "decisions.sqlite"

    def work(number: int) -> None:
        now = [0.0]

        pairs = [
            ("slow", taking(now, 2.0)),
            ("fast", taking(now, 1.0)),
            ("middle", taking(now, 1.5)),
        ]
        store = SqliteStore(path)
        selector = BestOf(
            "quorum", pairs, lambda problem: problem, clock=lambda: now[0], store=store
        )
        order = list(range(problems))
        random.Random(number).shuffle(order)
        for _ in range(40):
            for problem in order:
                selector(problem)
        selector.flush()
        assert store.flush(PATIENCE)
        assert all(selector.explain(problem).decision == "fast" for problem in order), str(
            selector.report()
        )
        store.close()

    children = [forked(lambda number=number: work(number)) for number in range(processes)]
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    store = SqliteStore(path)
    right = sum(
        record.decision == "fast" and len(record.evidence) == 3 for record in store.records()
    )
    store.close()
    return {
        "selectors at once": str(processes),
        "selectors that failed": str(failed),
        "problems undecided": str(problems - right),
    }


def loop(folder: Path, problems: int) -> dict[str, str]:
    """Meet and decide so many problems in one loop; what a problem takes at its two ends."""
    now = [0.0]

    pairs = [("slow", taking(now, 9.0)), ("fast", taking(now, 1.0))]
    store = SqliteStore(made(folder / "loop") / "decisions.sqlite")
    selector = BestOf(
        "loop",
        pairs,
        lambda problem: problem,
        policy="rounds:rounds=1",
        clock=lambda: now[0],
        store=store,
        max_problems=2 * problems,
    )
    marks = [time.process_time()]
    for tenth in range(10):
        for problem in range(tenth * problems // 10, (tenth + 1) * problems // 10):
            for _ in range(4):
                selector(problem)
        marks.append(time.process_time())
    assert store.flush(PATIENCE)
    found = len(store.records())
    store.close()
    first, last = (
        (marks[place + 1] - marks[place]) / (problems / 10) * 1e6 for place in (0, len(marks) - 2)
    )
    return {
        "problems in one loop": str(problems),
        "a problem": f"{first:.0f} us of the processor at first, {last:.0f} us at last",
        "problems lost": str(problems - found),
    }


def for_so_long(folder: Path, seconds: float, seed: int) -> dict[str, str]:
    """Small crowds, kills and quorums until the time is over; the counts of all of them, added
    up."""
    end, rounds = time.perf_counter() + seconds, 0
    sums = dict.fromkeys(BAD, 0)
    while rounds == 0 or time.perf_counter() < end:
        place = folder / str(rounds)
        found = crowd(place, 8, 5) | quorum(place, 8, 20) | massacre(place, 10, seed + rounds)
        sums = {name: count + int(found.get(name, 0)) for name, count in sums.items()}
        rounds += 1
    return {"rounds of 8 writers, 8 selectors, 10 kills": str(rounds)} | {
        k: str(v) for k, v in sums.items()
    }


def massacre(folder: Path, kills: int, seed: int) -> dict[str, str]:
    """Kill a writer again and again; what was found. Every tenth writer begins a new file."""
    random.seed(seed)
    lost = failures = acknowledged = 0
    path = folder / "none"
    promised: dict[str, str] = {}
    for kill in range(kills):
        if kill % 10 == 0:
            path, promised = made(folder / f"kills-{kill}") / "decisions.sqlite", {}
        promises = one_kill(path, kill)
        acknowledged += len(promises)
        promised |= promises
        try:
            store = SqliteStore(path)
            decisions = {record.problem: record.decision for record in store.records()}
            store.save(Record("after", str(kill), HOST, "a", (), time.time()))
            assert store.flush(PATIENCE)
            store.close()
            lost += sum(
                decisions.get(problem) != decision for problem, decision in promised.items()
            )
            failures += len(list(path.parent.glob("*.damaged*")))
        except Exception:
            traceback.print_exc()
            failures += 1
    return {
        "kills": str(kills),
        "decisions promised": str(acknowledged),
        "decisions lost": str(lost),
        "stores that did not open": str(failures),
    }


def one_kill(path: Path, kill: int) -> dict[str, str]:
    """Begin a writer and kill it after up to 30 ms; the decisions that was flushed."""
    reports_read, reports_write = os.pipe()

    def work() -> None:
        os.close(reports_read)
        store = SqliteStore(path)
        for save in range(10_000):
            decision = random.choice(("direct", "im2row"))
            pair = tuple(evidence(name) for name in ("direct", "im2row"))
            store.save(
                Record("conv2d", f"({kill}, {save % 50})", HOST, decision, pair, time.time())
            )
            assert store.flush(PATIENCE)
            os.write(reports_write, f"({kill}, {save % 50})={decision}\n".encode())

    delay = random.uniform(0, 0.03)
    child = forked(work)
    os.close(reports_write)
    text = b""
    end = time.perf_counter() + delay
    while (left := end - time.perf_counter()) > 0:  # read on, or the writer would wait for the pipe
        if select.select([reports_read], [], [], left)[0]:
            text += os.read(reports_read, 65536)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while chunk := os.read(reports_read, 65536):
        text += chunk
    os.close(reports_read)
    # A problem saved again may hold the decision after the promised one: the save that the kill
    # interrupted. It is left out: the next in turn would be (kill, n % 50).
    lines = text.decode().splitlines()
    promises = dict(line.rsplit("=", 1) for line in lines)
    promises.pop(f"({kill}, {len(lines) % 50})", None)
    return promises


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; 0 if nothing was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--saves", type=int, default=10, help="problems a process (two saves each)")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--selectors", type=int, default=0)
    parser.add_argument("--problems", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    options = parser.parse_args(argv)
    warnings.simplefilter("error")
    rows: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.processes:
            rows |= crowd(Path(folder), options.processes, options.saves)
        if options.kills:
            rows |= massacre(Path(folder), options.kills, options.seed)
        if options.selectors:
            rows |= quorum(Path(folder), options.selectors, problems=50)
        if options.problems:
            rows |= loop(Path(folder), options.problems)
        if options.seconds:
            rows |= for_so_long(Path(folder), options.seconds, options.seed)
    for name, value in rows.items():
        print(f"{name:26} {value}")
    return int(any(rows.get(name, "0") != "0" for name in BAD))


if __name__ == "__main__":
    sys.exit(main())
