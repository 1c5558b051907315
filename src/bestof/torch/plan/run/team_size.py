"""Fewer threads for the calls of a program, while neighbours leave fewer processors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter, thread_time

import torch

from bestof.selection.state.lock import current_lock
from bestof.torch.plan.run.retreat import LOST, OLD, Retreat
from bestof.torch.plan.steps.chosen_step import Runner
from bestof.torch.process.fork_lock import ForkLock
from bestof.torch.process.neighbours import NEIGHBOURS
from bestof.torch.process.openmp import on_threads

BLOCK = 0.2
"""Seconds of calls that are summed: many time slices of the system, which take 3 to 4 ms each.

Blocks of 50 ms beside ten busy processes held one or two calls, and chance decided.
"""

WINS = 3
"""Pairs of blocks that another number of threads must win, one after the other."""

GAIN = 0.95
"""The time over that of more threads, at most, with which fewer threads win a pair."""

MANY_STEPS = 16
"""Steps from which on a call is asked whether its thread has run, which takes 1 us.

Such steps take 100 us or more together.
"""

PAUSE = 0.005
"""Seconds between two calls, after which the later one is not asked: its threads may have slept.

To wake them took the first calls after a pause 1 to 4 ms, on a machine without neighbours.
"""

SELDOM = 10.0
"""Seconds of calls until the next trial, for each second of the last pair of blocks.

A server that computes for 5 ms now and then would otherwise try all the time.
"""


@dataclass(slots=True)
class _Trial:
    """Another number of threads, and the number in use, for a block of calls each, in turn.

    mean: seconds of a call in the last block of the other number, None until that block ends.
    seconds, calls: those of the block that goes on. pair: the seconds of the pair of blocks.
    """

    threads: int
    mean: float | None = None
    wins: int = 0
    seconds: float = 0.0
    calls: int = 0
    pair: float = 0.0


class TeamSize:
    """The number of threads that run the calls of a program: all, or fewer.

    A step whose threads meet after some microseconds waits until a neighbour leaves the processor
    to the last of them. Which number is best depends on the steps, so the program tries it. While
    threads of the process wait for processors, fewer are tried. Fewer threads than processors do
    not wait. So if fewer are in use, all are tried now and then, for a block of calls: that shows
    whether the neighbours have gone.

    The watch tells of neighbours after two seconds. A `Retreat` begins after two calls, needs no
    trial, and ends one.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()  # held for a moment only
        self._all = self._used = 0
        self._trial: _Trial | None = None
        self._retreat = Retreat()
        self._trials = 0
        self._rest = 0.0  # seconds of calls until the next trial
        self.ended = 0.0  # when the last call ended

    @property
    def is_open(self) -> bool:
        """Whether fewer threads are in use, or a trial goes on."""
        return self._trial is not None or self._used != self._all or self._retreat.is_open

    def use_all(self) -> None:
        """Use all threads from now on; a trial ends."""
        with self._lock:
            self._start(self._all)

    def ask(self, threads: int, waited: float) -> int:
        """Return how many of the threads run the next call.

        waited: the share of the wanted time for which threads of the process have waited for a
        processor; 0 without neighbours.
        """
        with self._lock:
            if threads != self._all:
                self._start(threads)
            if self._retreat.is_open:
                return self._retreat.threads(threads)
            if self._trial is None and self._rest <= 0:
                self._trial = self._next(waited)
            trial = self._trial
            return self._used if trial is None else self._turn(trial)

    def forget_retreat(self) -> None:
        """Forget a retreat: what was read before a long pause tells nothing of now."""
        with self._lock:
            self._retreat.forget()

    def note_loss(self, seconds: float) -> None:
        """Note for how long the thread of a call, on all threads, did not run."""
        threads = torch.get_num_threads()
        with self._lock:
            if threads != self._all:
                self._start(threads)
            if self._used == threads:
                self._retreat.note_loss(threads, seconds)
            if self._retreat.is_open:
                self._trial = None

    def tell(self, threads: int, seconds: float, steps: int = 1) -> None:
        """Note that a call of so many steps on so many threads took so long."""
        with self._lock:
            if self._retreat.is_open:
                if threads < self._all:  # else it began before the retreat
                    self._retreat.tell(self._all, seconds, steps)
                if not self._retreat.is_open:
                    self._rest = SELDOM * BLOCK  # the watch still tells of what was before
                return
            trial = self._trial
            if trial is None:
                self._rest -= seconds
                return
            if threads != self._turn(trial):
                return  # it began before another thread's call ended the block
            trial.seconds += seconds
            trial.calls += 1
            if trial.seconds < BLOCK:
                return
            mean = trial.seconds / trial.calls
            trial.pair += trial.seconds
            trial.seconds, trial.calls = 0.0, 0
            if trial.mean is None:
                trial.mean = mean
                return
            won = trial.mean < mean * (GAIN if trial.threads < self._used else 1.0)
            trial.mean, trial.wins = None, trial.wins + 1
            self._rest, trial.pair = SELDOM * trial.pair, 0.0
            if won and trial.wins < WINS:
                return
            if won:
                self._used = trial.threads
            self._trial = None

    def _start(self, threads: int) -> None:
        """Use all of so many threads from now on."""
        self._all = self._used = threads
        self._trial = None
        self._retreat.end()

    def _turn(self, trial: _Trial) -> int:
        """Return on how many threads the block of calls runs that goes on."""
        return trial.threads if trial.mean is None else self._used

    def _next(self, waited: float) -> _Trial | None:
        """Return a trial of fewer threads, or of all, in turn if both are possible."""
        fewer = max(1, int(self._used * (1 - waited))) if waited else self._used
        others = [one for one in (fewer, self._all) if one != self._used]
        if not others:
            return None
        self._trials += 1
        return _Trial(others[self._trials % len(others)])


def run_on_team(size: TeamSize, runs: Iterable[Runner], steps: int = 1) -> None:
    """Run the steps of a call on as many threads as the size of the team says.

    On all threads, if results must have the same bits each time, or if nobody watches neighbours.
    OpenMP's regions of the calling thread, which PyTorch's and native kernels use, become smaller.
    MKL's products keep their number if the program has set one.
    """
    threads = every = torch.get_num_threads()
    if perf_counter() - size.ended > OLD:
        size.forget_retreat()
    if (
        not NEIGHBOURS.watches
        or current_lock() is not None
        or torch.are_deterministic_algorithms_enabled()
    ):
        size.use_all()
    else:
        threads = size.ask(every, NEIGHBOURS.waited)
    started = perf_counter()
    if threads == every:
        run_on_all(size, runs)
    else:
        with on_threads(threads):
            for run in runs:
                run()
        size.ended = perf_counter()
    size.tell(threads, size.ended - started, steps)


def run_on_all(size: TeamSize, runs: Iterable[Runner]) -> None:
    """Run the steps of a call on all threads, and see whether neighbours are in the way: 1 us."""
    started, own = perf_counter(), thread_time()
    for run in runs:
        run()
    ended = perf_counter()
    lost = ended - started - (thread_time() - own)
    if lost > LOST and started - size.ended < PAUSE:
        size.note_loss(lost)
    size.ended = ended
