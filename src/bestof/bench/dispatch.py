"""Measures what a call of a selector costs, settled and during trials."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from itertools import count, repeat
from math import inf
from statistics import median
from typing import Any

from bestof.bench.quartiles import Quartiles
from bestof.errors import InvalidArgument
from bestof.selection.best_of import BestOf
from bestof.selection.hot_path import PythonHotPath
from bestof.selection.passes import PythonWinner
from bestof.selection.policies import Drift, Race, Rounds
from bestof.selection.policies.policy import Policy
from bestof.selection.state.journal import TrialEntry

THREADS = 8
_DEPTH = 200  # frames on the stack below a deep trial
_TRIALS = 8  # trials of each problem after the first one; too few to end a race of equals
# Of it, 1.6 us tell whether the budget and the neighbours allow a trial, and book what it cost.
_TRIAL_REACH = 5e-6
_NAMES = ("first", "second")
_selectors = count()

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class DispatchTime:
    """Seconds a call, as medians over the repeats. `spread` is half the distance between the
    quartiles.

    For the direct call, `seconds` is the whole call: problem function, alternative and loop. For
    the others, it is the additional time, without that of the policy. `threaded` is the same for
    THREADS threads that call at once: elapsed seconds divided by the calls of all. For trials, each
    thread has its own selector. `reach` is the promised limit of `seconds`, or None.
    """

    name: str
    seconds: float
    spread: float
    threaded: float
    reach: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One row to be measured: `seconds(calls, threads)` returns seconds a call."""

    name: str
    seconds: Callable[[int, int], float]
    reach: float | None = None


def measure(repeats: int = 25, calls: int = 8000) -> list[DispatchTime]:
    """Measure every case `repeats` times. Cases take turns, so that a slow moment affects all of
    them.

    `calls` is the number of calls of each measurement; several threads share them. Raises
    InvalidArgument for fewer than two repeats, or for fewer calls than threads.
    """
    if repeats < 2:
        raise InvalidArgument(f"bench dispatch: repeats: expected at least 2; got {repeats}")
    if calls < THREADS:
        raise InvalidArgument(f"bench dispatch: calls: expected at least {THREADS}; got {calls}")
    alone: dict[str, list[float]] = {case.name: [] for case in CASES}
    threaded: dict[str, list[float]] = {case.name: [] for case in CASES}
    for _ in range(repeats):
        for case in CASES:
            alone[case.name].append(case.seconds(calls, 1))
            threaded[case.name].append(case.seconds(calls // THREADS, THREADS))
    return [
        DispatchTime(
            case.name,
            median(alone[case.name]),
            Quartiles.of(alone[case.name]).spread,
            median(threaded[case.name]),
            case.reach,
        )
        for case in CASES
    ]


def _problem(value: int) -> int:
    return value


def _answer(value: int) -> int:
    return value


def _elapsed(works: Sequence[Work]) -> float:
    """Return the seconds until all works are done. Several works run in one thread each."""
    if len(works) == 1:
        started = time.perf_counter()
        works[0]()
        return time.perf_counter() - started
    barrier = threading.Barrier(len(works) + 1)

    def wait_and(work: Work) -> None:
        barrier.wait()
        work()

    threads = [threading.Thread(target=wait_and, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


# Each loop is written separately, because a wrapper would cost as much as the call itself.


def _call_direct(calls: int) -> None:
    for _ in repeat(None, calls):
        _problem(1)
        _answer(1)


def _call_answer(calls: int) -> None:
    for _ in repeat(None, calls):
        _answer(1)


def _call_table(functions: dict[int, Callable[[int], int]], calls: int) -> None:
    for _ in repeat(None, calls):
        functions[_problem(1)](1)


def _call_one(function: Callable[[int], Any], calls: int) -> None:
    for _ in repeat(None, calls):
        function(1)


def _call_stage(function: Callable[[int, int], Any], calls: int) -> None:
    for _ in repeat(None, calls):
        function(0, 1)


def _call_sampled(selector: BestOf, winner: PythonWinner, calls: int) -> None:
    for _ in repeat(None, calls):
        winner.sample_at = 0
        selector(1)


def _call_problems(function: Callable[[int], Any], problems: Sequence[int]) -> None:
    for problem in problems:
        function(problem)


# Cases


def _nothing(calls: int) -> None:
    """Do nothing. The direct call is measured against this."""


def _seconds(
    loop: Callable[[int], object], beyond: Callable[[int], object], calls: int, threads: int
) -> float:
    less = 0.0 if beyond is _nothing else _elapsed([partial(beyond, calls)] * threads)
    return (_elapsed([partial(loop, calls)] * threads) - less) / (calls * threads)


def _calls(
    name: str,
    loop: Callable[[int], object],
    beyond: Callable[[int], object] = _call_direct,
    reach: float | None = None,
) -> Case:
    return Case(name, partial(_seconds, loop, beyond), reach)


def _trials(policy: Policy, around: Callable[[Work], Work], calls: int, threads: int) -> float:
    # One trial for 32 calls takes 0.6 ms in all. Longer measurements would be preempted more often.
    problems = range(max(1, calls // (32 * _TRIALS)))
    selectors = [_on_trial(policy) for _ in range(threads)]
    for selector in selectors:
        _call_problems(selector, problems)  # the first call of each problem
    before = sum(selector.trials for selector in selectors)
    order = [problem for problem in problems for _ in range(_TRIALS)]
    # Some trials first load the code into the caches. The loops of the other rows are long enough
    # to do that.
    around(partial(_call_problems, _on_trial(policy), order[: 4 * _TRIALS]))()
    took = _elapsed([around(partial(_call_problems, selector, order)) for selector in selectors])
    took -= _elapsed([partial(_call_direct, len(order))] * threads)
    took -= _elapsed([_policy_alone(policy, selector) for selector in selectors])
    return took / (sum(selector.trials for selector in selectors) - before)


def _on_trial(policy: Policy) -> BestOf:
    # Each has a name of its own: selectors that do the same under one name search together, so
    # seven of eight threads would make no trial, and all would wait for one lock.
    return BestOf(
        f"dispatch {next(_selectors)}",
        [(name, _answer) for name in _NAMES],
        _problem,
        policy=policy,
        store="off",
    )


def _policy_alone(policy: Policy, selector: BestOf) -> Work:
    """Return the work of the policy in a selector's trials, without each problem's first one."""
    searches: dict[Hashable, Any] = {}
    steps = []
    for entry in selector.journal.entries():
        if not isinstance(entry, TrialEntry):
            continue
        if entry.problem in searches:
            steps.append((searches[entry.problem], _NAMES.index(entry.alternative), entry.seconds))
        else:
            searches[entry.problem] = search = policy.start(_NAMES)
            search.ask()
            search.tell(_NAMES.index(entry.alternative), entry.seconds)

    def replay() -> None:
        for search, position, seconds in steps:
            search.ask()
            search.tell(position, seconds)
            _ = search.winner

    return replay


def _here(work: Work) -> Work:
    return work


def _inside_a_trial(work: Work) -> Work:
    todo: list[Work] = []

    def called() -> None:
        for one in todo:
            one()

    outer = BestOf(
        "outer", [(name, called) for name in _NAMES], lambda: None, policy=Rounds(), store="off"
    )
    outer()  # the first call of the problem is not measured
    todo.append(work)
    return outer


def _deep(work: Work) -> Work:
    return partial(_below, work, _DEPTH - 1)


def _below(work: Work, frames: int) -> None:
    if frames == 0:
        work()
    else:
        _below(work, frames - 1)


def _settled_plain() -> BestOf:
    return BestOf("dispatch", [("only", _answer)], _problem, store="off")


def _settled_group() -> BestOf:
    return BestOf("dispatch", [("only", [_answer, _answer])], _problem, store="off")


def _sampled_call() -> Callable[[int], None]:
    """Return a settled call that is timed for drift each time; usually one in thousands is."""
    selector = BestOf(
        "dispatch", [(name, _answer) for name in _NAMES], _problem, 1, drift=True, store="off"
    )
    for _ in _NAMES:
        selector(1)
    selector._knowledge.drifts[1] = Drift(1.0, speedup=inf)  # never reopen the race
    return partial(_call_sampled, selector, selector._settled[1])


def _in_python(grouped: bool) -> PythonHotPath:
    selector = PythonHotPath()
    selector.name = "dispatch"
    selector.get_problem_size = _problem
    selector._stage_count = 2 if grouped else 0
    selector._settled = {1: PythonWinner((_answer, _answer))}
    return selector


@singledispatch
def _by_type(value: Any) -> Any:
    raise TypeError(value)


_by_type.register(int, _answer)

CASES = (
    _calls("direct call", _call_direct, _nothing),
    _calls("functools.singledispatch", partial(_call_one, _by_type), _call_answer),
    _calls("dict of functions", partial(_call_table, {1: _answer})),
    _calls("settled call", partial(_call_one, _settled_plain()), reach=150e-9),
    _calls("settled stage of a group", partial(_call_stage, _settled_group()), reach=200e-9),
    _calls("settled call that is sampled", _sampled_call()),
    _calls("settled call, pure Python", partial(_call_one, _in_python(False))),
    _calls("settled stage, pure Python", partial(_call_stage, _in_python(True))),
    Case("trial under Rounds", partial(_trials, Rounds(), _here), _TRIAL_REACH),
    Case("trial under Race", partial(_trials, Race(), _here), _TRIAL_REACH),
    Case("trial inside a trial", partial(_trials, Rounds(), _inside_a_trial), _TRIAL_REACH),
    Case(f"trial {_DEPTH} frames deep", partial(_trials, Rounds(), _deep), _TRIAL_REACH),
)
