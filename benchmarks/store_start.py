"""How long does a new process wait for a store that many machines share?

`store_start.py URL [--problems N] [--runs N]` saves N problems of the selector `store_start` in the
store at URL, and starts new processes that read them. Prints the medians of these times:

- open: `open_store` returns, and the thread of the store begins to connect,
- driver: psycopg is imported alone, in a process of its own,
- first: from the call of `open_store` to the first record, with the import of psycopg,
- server: the same in a process that had imported psycopg before,
- next: a pin and a record of each further problem.

The problems are removed afterwards.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from statistics import median

from bestof.selection.store.protocol import Store
from bestof.selection.store.record import Evidence, Record
from bestof.selection.store.url import open_store

SELECTOR, HOST = "store_start", "any processor; 2 cpus"
NEXT = 200  # problems that a process reads after the first

# Prints milliseconds: the import of psycopg, `open_store`, the first record, each further problem.
PROGRAM = f"""
import sys, time
from bestof.selection.store.url import open_store

url, early, problems = sys.argv[1], sys.argv[2] == "early", int(sys.argv[3])
begin = time.perf_counter()
if early:
    import psycopg
imported = time.perf_counter()
store = open_store(url)
opened = time.perf_counter()
found = [store.load({SELECTOR!r}, "(0, 64, 56, 56)", {HOST!r})]
first = time.perf_counter()
for number in range(1, problems):
    store.pinned({SELECTOR!r}, f"({{number}}, 64, 56, 56)", {HOST!r})
    found.append(store.load({SELECTOR!r}, f"({{number}}, 64, 56, 56)", {HOST!r}))
last = time.perf_counter()
assert None not in found
store.close()
each = (last - first) / max(1, problems - 1)
print(*(1e3 * s for s in (imported - begin, opened - imported, first - imported, each)))
"""


def records(problems: int) -> list[Record]:
    """Return records as a convolution of five alternatives leaves them."""
    evidence = tuple(Evidence(f"a{n}", "1.0", (1e-3 * n,) * 8) for n in range(5))
    return [
        Record(SELECTOR, f"({number}, 64, 56, 56)", HOST, "a0", evidence, 1.0)
        for number in range(problems)
    ]


def measure(url: str, problems: int, runs: int) -> dict[str, float]:
    """Fill the store, and return the median milliseconds of each row."""
    store = open_store(url)
    if store is None:
        raise SystemExit("'off' is no store; pass the URL of one")
    try:
        store.unite(records(problems))
        return _read(url, problems, runs)
    finally:
        _remove(store)


def _read(url: str, problems: int, runs: int) -> dict[str, float]:
    late, early = [], []
    for _ in range(runs):
        late.append(_process(url, "late", min(problems, NEXT)))
        early.append(_process(url, "early", min(problems, NEXT)))
    return {
        "open": median(times[1] for times in late),
        "driver": median(times[0] for times in early),
        "first": median(times[2] for times in late),
        "server": median(times[2] for times in early),
        "next": median(times[3] for times in early),
    }


def _process(url: str, when: str, problems: int) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, when, str(problems)],
        env={**os.environ, "BESTOF_STORE_WAIT": "60"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [float(word) for word in done.stdout.split()]


def _remove(store: Store) -> None:
    store.clear(SELECTOR)
    store.close()


def main() -> None:
    """Parse, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", metavar="URL")
    parser.add_argument("--problems", type=int, default=10_000, metavar="N")
    parser.add_argument("--runs", type=int, default=9, metavar="N")
    options = parser.parse_args()
    for name, value in measure(options.url, options.problems, options.runs).items():
        print(f"{name:8}{value:10.2f} ms")


if __name__ == "__main__":
    main()
