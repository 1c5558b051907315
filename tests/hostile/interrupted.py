"""Interrupt a program at the n-th line, or the n-th instruction, of chosen files.

A trace function raises there, as a signal handler would. `places` counts how many places a scenario
has, so that a test can try every one.

The end of a `with` block is no such place: the interpreter looks for signals after calls and at
jumps backwards, and there is neither between the last line of the block and the call that leaves
it. Tracing shows the line of the `with` statement there all the same.
"""

from __future__ import annotations

import dis
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import bestof
from bestof.selection.best_of import BestOf
from bestof.selection.trials.trial import current_trial, detours

BESTOF = str(Path(bestof.__file__).parent)

# What follows `BEFORE_WITH` at the end of its block: the call of `__exit__` with three times None.
_LEAVES = ("LOAD_CONST", "LOAD_CONST", "LOAD_CONST")


class Interrupt(BaseException):
    """What a signal handler raises."""


class TimeLimit(Exception):
    """The same, as an Exception."""


class Interruption:
    """Raises at the n-th place of the files for which `chosen(filename)` is true.

    `instructions`: each instruction is a place, in place of each line.
    """

    def __init__(
        self,
        place: int,
        chosen: Callable[[str], bool],
        *,
        instructions: bool = False,
        kind: type[BaseException] = Interrupt,
    ) -> None:
        self.passed = 0
        self.where = ""
        self._place = place
        self._chosen = functools.lru_cache(None)(chosen)
        self._instructions = instructions
        self._kind = kind

    @property
    def happened(self) -> bool:
        """Whether it has raised."""
        return bool(self.where)

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Trace the calls of this block, until it has raised once."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if self.happened or not self._chosen(frame.f_code.co_filename):
            return None
        if self._instructions:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if self.happened:
            return None
        if event != ("opcode" if self._instructions else "line"):
            return self._step
        if frame.f_lasti in _unlooked(frame.f_code):
            return self._step
        self.passed += 1
        if self.passed == self._place:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            raise self._kind(self.where)
        return self._step

    def take(self, step: Callable[[], object]) -> bool:
        """Take a step, armed; return whether it ended."""
        try:
            with self.armed():
                step()
        except (Interrupt, TimeLimit):
            assert self.happened
            return False
        return True


@functools.lru_cache(None)
def _unlooked(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions that leave a `with` block, up to its call."""
    found: set[int] = set()
    instructions = list(dis.get_instructions(code))
    names = [one.opname for one in instructions]
    withs = {
        one.positions.lineno if one.positions else None
        for one in instructions
        if one.opname in ("BEFORE_WITH", "SETUP_WITH", "BEFORE_ASYNC_WITH")
    }
    for index, one in enumerate(instructions):
        line = one.positions.lineno if one.positions else None
        if line not in withs or tuple(names[index : index + 3]) != _LEAVES:
            continue
        for later in instructions[index : index + 6]:
            found.add(later.offset)
            if later.opname.startswith("CALL"):
                break
        if index and names[index - 1] in ("SWAP", "NOP", "POP_TOP", "POP_BLOCK", "ROT_TWO"):
            found.add(instructions[index - 1].offset)
    return frozenset(found)


def places(
    scenario: Callable[[Interruption], object], chosen: Callable[[str], bool], **options: Any
) -> int:
    """Return how many places a scenario has."""
    never = Interruption(0, chosen, **options)
    scenario(never)
    return never.passed


def sweep(
    name: str,
    run: Callable[[Interruption], object],
    chosen: Callable[[str], bool],
    *,
    instructions: bool = False,
    kind: type[BaseException] = Interrupt,
    every: int = 1,
    first: int = 1,
    samples: int | None = None,
    clean: Callable[[], object] = lambda: None,
) -> tuple[int, list[str]]:
    """Interrupt a scenario at every place, or every so many. Return their number, and faults.

    `samples`: about so many places, evenly spread, in place of every so many.
    `clean` is called after a fault, so that the next run begins well.
    """
    count = places(run, chosen, instructions=instructions)
    if samples is not None:
        every = max(1, count // samples)
        first = 1 + every // 2
    found, tried = [], 0
    for place in range(first, count + 1, every):
        interruption = Interruption(place, chosen, instructions=instructions, kind=kind)
        tried += 1
        try:
            run(interruption)
        except Exception as error:  # of any kind: this is what is looked for
            found.append(f"{name}, {place}: {interruption.where}: {type(error).__name__}: {error}")
            clean()
    return tried, found


def assert_nothing_is_open(selectors: Iterable[BestOf]) -> None:
    """Raise AssertionError if an interrupt has left a trial, or a lock of a selector."""
    assert detours == [], "a trial is open"
    trial = current_trial.get()
    assert trial is None or trial.done, "a trial is the current one"
    if trial is not None:
        current_trial.set(None)
    with ThreadPoolExecutor(1) as other:
        for selector in selectors:
            assert other.submit(_takes, selector._knowledge.lock).result(), "a lock is held"


def _takes(lock: Any) -> bool:
    if not lock.acquire(timeout=2):
        return False
    lock.release()
    return True


def print_sweeps(
    faults: Callable[..., tuple[int, list[str]]], scenarios: Iterable[str], argv: Sequence[str]
) -> None:
    """Sweep from the command line: every how many lines, and the scenarios; all by default."""
    for chosen in argv[1:] or scenarios:
        begun = time.perf_counter()
        number, wrong = faults(chosen, every=int(argv[0]))
        print(f"{chosen}: {number} lines, {len(wrong)} faults, {time.perf_counter() - begun:.0f} s")
        for one in wrong[:12]:
            print("   ", one)
