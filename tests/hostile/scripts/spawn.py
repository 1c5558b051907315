"""Processes that multiprocessing spawns share a store, and end right after their last decision."""

import multiprocessing
import sys

from bestof import BestOf
from bestof.selection.store.sqlite import SqliteStore


def by_a(n: int) -> int:
    """One way."""
    return n


def by_b(n: int) -> int:
    """Another way."""
    return n + 0


def work(path: str, first: int) -> None:
    """Decide ten problems."""
    selector = BestOf(
        "it", [("a", by_a), ("b", by_b)], lambda n: n, rounds=3, store=SqliteStore(path)
    )
    for problem in range(first, first + 10):
        while selector.explain(problem).decision is None:
            assert selector(problem) == problem


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(sys.argv[1], 10 * n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    store = SqliteStore(sys.argv[1])
    kept = {int(record.problem) for record in store.records() if record.decision is not None}
    assert kept == set(range(30)), sorted(set(range(30)) - kept)
    print("ok")
