"""Record what several implementations of one thing really take, call by call, for `policies.py` to
replay.

    python benchmarks/record_traces.py [--rows 160] [--out benchmarks/traces]

Writes one CSV a trace: the header names the alternatives, every row holds one call of each, side by
side, in units of 10 ns. Each group is recorded alone, and again beside a process that takes a core
in bursts.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

UNIT = 1e-8  # seconds; the files stay small, and the clock is not finer
Group = dict[str, Callable[[], object]]


def transposes(height: int, width: int) -> Group:
    """NCHW to NHWC in five ways; the first two differ by next to nothing."""
    x = np.random.default_rng(0).random((8, 16, height, width), dtype=np.float32)
    out = np.empty((8, height, width, 16), np.float32)
    flat, flat_out = x.reshape(8, 16, -1), out.reshape(8, -1, 16)
    return {
        "ascontiguousarray": lambda: np.ascontiguousarray(x.transpose(0, 2, 3, 1)),
        "copy": lambda: x.transpose(0, 2, 3, 1).copy(),
        "copyto": lambda: np.copyto(out, x.transpose(0, 2, 3, 1)),
        "by_image": lambda: [np.copyto(out[i], x[i].transpose(1, 2, 0)) for i in range(8)],
        "flattened": lambda: np.copyto(flat_out, flat.transpose(0, 2, 1)),
        "by_channel": lambda: [np.copyto(out[..., c], x[:, c]) for c in range(16)],
    }


def products(n: int) -> Group:
    """One matrix product as BLAS, einsum, and in blocks."""
    a, b = np.random.default_rng(1).random((2, n, n), dtype=np.float32)
    out = np.empty((n, n), np.float32)
    half = n // 2
    return {
        "matmul": lambda: a @ b,
        "dot": lambda: np.dot(a, b),
        "matmul_out": lambda: np.matmul(a, b, out=out),
        "transposed": lambda: (b.T @ a.T).T,
        "halves": lambda: [np.matmul(a[i : i + half], b, out=out[i : i + half]) for i in (0, half)],
        "einsum": lambda: np.einsum("ij,jk->ik", a, b, optimize=True),
        "float64": lambda: (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32),
    }


def sorts(n: int) -> Group:
    """Sorting numbers in ten ways."""
    x = np.random.default_rng(2).random(n, dtype=np.float32)
    wide, listed = x.astype(np.float64), x.tolist()
    return {
        "quicksort": lambda: np.sort(x),
        "heapsort": lambda: np.sort(x, kind="heapsort"),
        "stable": lambda: np.sort(x, kind="stable"),
        "argsort": lambda: x[np.argsort(x)],
        "float64": lambda: np.sort(wide),
        "halves": lambda: np.sort(np.concatenate((np.sort(x[: n // 2]), np.sort(x[n // 2 :])))),
        "partition": lambda: np.sort(np.partition(x, n // 2)),
        "unique": lambda: np.unique(x),
        "list": lambda: sorted(listed),
        "lexsort": lambda: x[np.lexsort((x,))],
    }


def sums(n: int) -> Group:
    """A sum of squares in three ways."""
    x = np.random.default_rng(3).random(n, dtype=np.float32)
    return {
        "dot": lambda: np.dot(x, x),
        "square": lambda: np.square(x).sum(),
        "power": lambda: np.sum(x**2),
    }


def pair(n: int) -> Group:
    """Two ways to copy, close to each other."""
    x = np.random.default_rng(4).random(n, dtype=np.float32)
    return {"copy": lambda: np.copy(x), "add": lambda: x + np.float32(0)}


GROUPS: dict[str, Group] = {
    "transpose-28": transposes(28, 28),
    "transpose-56": transposes(56, 56),
    "product-96": products(96),
    "product-256": products(256),
    "sort-1000": sorts(1000),
    "sort-10000": sorts(10000),
    "sum-20000": sums(20000),
    "copy-100000": pair(100000),
}


def neighbour() -> None:
    """Take a core in bursts of 2 to 60 ms, idle as long, for ever."""
    draw = random.Random(5)
    while True:
        until = time.perf_counter() + draw.uniform(0.002, 0.06)
        while time.perf_counter() < until:
            pass
        time.sleep(draw.uniform(0.002, 0.06))


def record(group: Group, rows: int, seconds: float = 10.0) -> list[list[int]]:
    """One row a round; the first is kept, cold as it is; fewer rows where `seconds` are over.

    Between any two calls lies other work on 2 MiB, as in a program that has more to do than this
    one operation: without it a whole trace of a short call would fit into one burst of the
    neighbour.
    """
    table = []
    other = np.ones(2**19, np.float32)
    end = time.perf_counter() + seconds
    for _ in range(rows):
        row = []
        for function in group.values():
            other *= np.float32(1.0)
            begin = time.perf_counter()
            function()
            row.append(round((time.perf_counter() - begin) / UNIT))
        table.append(row)
        if time.perf_counter() > end:
            break
    return table


def main() -> None:
    """Record every group alone and beside neighbours, one a core."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "traces")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    for crowd in (0, multiprocessing.cpu_count()):
        company = [context.Process(target=neighbour, daemon=True) for _ in range(crowd)]
        for process in company:
            process.start()
        time.sleep(2.0 if company else 0.0)  # spawned processes import NumPy first
        for name, group in GROUPS.items():
            path = options.out / f"{name}{'-crowded' if crowd else ''}.csv"
            with path.open("w", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(group)
                writer.writerows(record(group, options.rows))
            print(path)
        for process in company:
            process.terminate()
            process.join()


if __name__ == "__main__":
    main()
