"""Sweeps the alternatives that hand calls to a library, in child processes with checked memory."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import problems

CHILD = Path(__file__).with_name("child.py")
_CHECKERS = ("libc_malloc_debug.so.0",)


@dataclass
class Found:
    """What a sweep found: cases by name, and the failures, each with its problem."""

    shapes: int = 0
    cases: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def environment() -> dict[str, str]:
    """Return the environment of a child, in which the C library checks and poisons memory.

    A block that was written behind its end is found when it is freed. New memory holds a pattern.
    Without glibc's library for this, memory is poisoned at most.
    """
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(_CHECKERS),
        "GLIBC_TUNABLES": "glibc.malloc.check=3",
        "MALLOC_PERTURB_": "165",
        "OMP_WAIT_POLICY": "passive",
        "BESTOF_STORE": "",
    }


def sweep(operation: str, first: int, last: int, seed: int = 0, patience: float = 120.0) -> Found:
    """Run the cases of the problems `first` to `last` (excluded) of an operation.

    A process that ends, or is silent for `patience` seconds, is a failure of the case that it ran.
    The sweep goes on behind that case in a new process.
    """
    found = Found(last - first)
    index, done = first, 0
    while index < last:
        arguments = [operation, str(seed), str(index), str(last), str(done)]
        child = subprocess.Popen(
            [sys.executable, str(CHILD), *arguments],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        at: tuple[int, str] | None = None
        for line in _lines(child, patience):
            told = json.loads(line)
            if "run" in told:
                at = told["run"][0], told["run"][1]
                done = done + 1 if at[0] == index else 1
                index = at[0]
                found.cases[at[1]] += 1
            else:
                number, name, why = told["wrong"]
                found.failures.append(_failure(operation, seed, number, name, why))
        child.kill()  # if it is silent
        error = child.communicate()[1]
        if child.returncode == 0:
            break
        if at is None:
            raise RuntimeError(f"the sweep of {operation} cannot start at {index}: {error[-2000:]}")
        last_words = error.strip().splitlines()[-1:] or [""]
        why = f"the process ended with {child.returncode} {last_words[0][:120]}"
        found.failures.append(_failure(operation, seed, *at, why))
    return found


def _failure(operation: str, seed: int, index: int, name: str, why: str) -> str:
    drawn = {
        "convolution": problems.convolution,
        "layer": problems.convolution,
        "product": problems.product,
        "pooling": problems.pooling,
    }.get(operation)
    text = ""
    if drawn is not None:
        problem = drawn(seed, index)
        text = f": {problem}, {problem.threads} threads"
    return f"{operation} {seed}:{index} {name}{text}: {why}"


def _lines(child: subprocess.Popen[str], patience: float) -> Iterator[str]:
    """Yield the lines of a process until it ends, or is silent for too long."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while selector.select(patience):
            line = child.stdout.readline()
            if not line:
                return
            if line.startswith("{"):
                yield line
