"""Threads share selectors and stores, while some of them open and close stores of the same file."""

import sys
import threading

from bestof import BestOf
from bestof.selection.store.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
selectors = [
    BestOf(
        f"s{n}", [("a", lambda n: n), ("b", lambda n: n + 0)], lambda n: n, rounds=3, store=store
    )
    for n in range(3)
]
failures = []


def work(number: int) -> None:
    """Decide problems that other threads decide too."""
    try:
        for problem in range(30):
            for selector in selectors:
                while selector.explain(problem).decision is None:
                    assert selector(problem) == problem
            if number % 2:
                other = SqliteStore(sys.argv[1])
                other.pin("other", str(number), str(problem))
                other.close()
    except BaseException as failure:
        failures.append(failure)
        raise


threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures
store.close()
again = SqliteStore(sys.argv[1])
assert len(again.pins("other")) == 30
kept = [record for record in again.records() if record.decision is not None]
assert len(kept) == 90, len(kept)
print("ok")
