"""Signals at random moments, whose handler raises: inside calls, saves, and the end of a store."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
import warnings
from pathlib import Path

from bestof import BestOf
from bestof.selection.store.sqlite import SqliteStore


class Alarm(BaseException):
    """What the handler raises. (An Exception inside an alternative would be its failure.)"""


def interrupt_calls(folder: Path, signals: int, seed: int) -> dict[str, int]:
    """Raise from a handler so many times while a selector decides problems; then ask another
    process's questions."""
    path = folder / "decisions.sqlite"
    store = SqliteStore(path)
    pairs = [("a", lambda n: n), ("b", lambda n: n + 0)]
    selector = BestOf("signals", pairs, lambda n: n, rounds=1, store=store)
    chance = random.Random(seed)
    caught = calls = 0

    rung: list[int] = []

    def handler(number: int, frame: object) -> None:
        rung.append(number)
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    decided: set[int] = set()
    try:
        while caught < signals:
            try:
                rung.clear()
                # The alarm may ring before this call returns.
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 3e-3))
                while not rung:  # Python drops what is raised inside a callback of a weak reference
                    selector(calls)
                    if selector.explain(calls).decision is not None:
                        decided.add(calls)
                        calls += 1
            except Alarm:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    selector.flush()
    written = store.flush(60.0)
    other = sqlite3.connect(path, timeout=0.0, isolation_level=None)
    busy = 0
    try:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    except sqlite3.OperationalError:
        busy = 1
    other.close()
    store.close()
    again = SqliteStore(path)
    # A decision that an interrupt kept from being told is made from the evidence by the next run.
    kept = {record.problem for record in again.records() if len(record.evidence) == 2}
    again.close()
    lost = sum(str(problem) not in kept for problem in decided)
    return {
        "signals": signals,
        "decisions": len(decided),
        "decisions lost to a signal": lost,
        "transactions left open": busy,
        "stores not written": int(not written),
    }


def end_by_signal(folder: Path, count: int, seed: int) -> dict[str, int]:
    """End processes by SIGTERM, SIGINT or SIGKILL at random moments; every store opens, and
    whole."""
    chance = random.Random(seed)
    path = folder / "ended.sqlite"
    failures = 0
    for number in range(count):
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.write(tell, b"1")
            store = SqliteStore(path)
            pairs = [("a", lambda n: n), ("b", lambda n: (*n,))]
            selector = BestOf("ended", pairs, lambda n: n, rounds=1, store=store)
            threading.Thread(target=lambda: time.sleep(5), daemon=True).start()
            problem = 0
            while True:
                selector((number, problem // 3))
                problem += 1
        # A signal that comes before the child has its handlers would be lost, and the child stay.
        os.read(ready, 1)
        os.close(ready)
        os.close(tell)
        time.sleep(chance.uniform(0, 0.03))
        os.kill(child, chance.choice((signal.SIGTERM, signal.SIGINT, signal.SIGKILL)))
        os.waitpid(child, 0)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            store = SqliteStore(path)
            store.pin("after", str(number))
            store.records()
            store.close()
        failures += bool(told)
    return {"processes ended by a signal": count, "stores that did not open whole": failures}
