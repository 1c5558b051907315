"""Forks while a selector works and its store writes: in the parent, a child, a pool, a
grandchild."""

import multiprocessing
import os
import sys

from bestof import BestOf
from bestof.selection.store.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
selector = BestOf(
    "it", [("a", lambda n: n), ("b", lambda n: n + 0)], lambda n: n, rounds=3, store=store
)


def work(first: int) -> int:
    """Decide ten problems."""
    for problem in range(first, first + 10):
        while selector.explain(problem).decision is None:
            assert selector(problem) == problem
    return first


def in_child(first: int, depth: int) -> None:
    """Work in a forked child, and in its own child."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(first)
            if depth > 1:
                in_child(first + 10, depth - 1)
            status = 0 if store.flush(60.0) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    work(0)
    in_child(100, 3)
    work(10)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(work, [200, 210, 220, 230], chunksize=1) == [200, 210, 220, 230]
        pool.close()
        pool.join()
    work(20)
    store.close()
    again = SqliteStore(sys.argv[1])
    kept = {int(record.problem) for record in again.records() if record.decision is not None}
    expected = {*range(30), *range(100, 130), *range(200, 240)}
    assert expected <= kept, sorted(expected - kept)
    print("ok")
