"""The settled call: problem, look-up, winner. Any other call takes the long way.

`HotPath` is the native type if the extension was built. It is PythonHotPath without the extension,
in a Python that runs without the GIL, or if the environment variable BESTOF_PURE_PYTHON is set.
Both read a dictionary and take no lock, and one contract suite runs over both. `bestof bench
dispatch` measures what a call costs in addition to the problem function and the winner.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from bestof.errors import ProblemError, StageError
from bestof.selection.integer import integer
from bestof.selection.passes import WHILE_SAMPLED, PythonWinner, WinnerWithoutGil
from bestof.selection.trials.trial import detours, timed_in_python


class LongWay:
    """The methods that the hot path calls if it cannot answer a call by itself."""

    name: str
    _stage_count: int
    _settled: dict[Hashable, PythonWinner]
    _is_selector = True  # for `version.py`, which does not read what a selector chooses among

    def _unhashable(self, problem: Hashable) -> ProblemError:
        """Return the error to raise after the look-up of a problem raised TypeError.

        If the comparison of two problems raises, its error is raised here.
        """
        fault = "which cannot be compared with another one"
        try:
            hash(problem)
        except TypeError:
            fault = "which is not hashable"
        else:
            self._settled.get(problem)
        return ProblemError(
            f"BestOf({self.name!r}): get_problem_size returned {problem!r}, {fault}; "
            f"return numbers, texts or tuples of them"
        )

    def _check_stage(self, *stage: object) -> int:
        """Return the stage of a call of a group as an int; raise StageError if it has none.

        Called before the problem function, which expects the arguments after the stage.
        """
        number = integer(stage[0]) if stage else None
        if number is not None and 0 <= number < self._stage_count:
            return number
        got = f"got {_short(stage[0])}" if stage else "got no argument"
        raise StageError(
            f"BestOf({self.name!r}): expected a stage from 0 to {self._stage_count - 1}; {got}; "
            "the calls of a group begin with the stage"
        )

    def _long_way(
        self, problem: Hashable, stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        raise NotImplementedError

    def _sampled(
        self,
        winner: PythonWinner,
        problem: Hashable,
        stage: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Answer and time a settled call; set `winner.sample_at` to the next call to time."""
        raise NotImplementedError


def _short(value: object) -> str:
    return repr(value) if isinstance(value, int | str | None) else type(value).__name__


# Compared with a slice: without the GIL, a thread that ends its trial may empty `detours` after it
# was found to hold one, and then there is no first item.
_SWITCHED_OFF = [None]


class PythonHotPath(LongWay):
    """Calls the settled winner of a problem. This is the reference in plain Python.

    `_settled` maps a problem to its winner. Any thread may replace this dict at any time.
    `_stage_count` is 0 for a plain selector. For a group it is the number of stages; the first
    argument of a call is then the stage. While `detours` begins with None, every selector is
    switched off, and `_first`, the functions of the first alternative by stage, answers every call.
    """

    get_problem_size: Callable[..., Hashable]
    _stage_count: int = 0
    _settled: dict[Hashable, PythonWinner]
    _first: tuple[Callable[..., Any], ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._stage_count:
            return self._call_stage(args, kwargs)
        if detours and self._first and detours[:1] == _SWITCHED_OFF:
            return self._first[0](*args, **kwargs)
        problem = self.get_problem_size(*args, **kwargs)
        try:
            winner = self._settled.get(problem)
        except TypeError as error:
            raise self._unhashable(problem) from error
        if winner is not None and not detours:
            winner.calls += (
                1  # no thread switch can happen within: CPython looks for one at calls and jumps
            )
            if winner.calls < winner.sample_at:
                return winner.functions[0](*args, **kwargs)
            winner.sample_at = winner.calls + WHILE_SAMPLED
            return self._sampled(winner, problem, 0, args, kwargs)
        return self._long_way(problem, 0, args, kwargs)

    def _call_stage(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stage, args = (given[0], given[1:]) if given else (None, ())
        if type(stage) is not int or not 0 <= stage < self._stage_count:
            stage = self._check_stage(*given[:1])
        if detours and self._first and detours[:1] == _SWITCHED_OFF:
            return self._first[stage](*args, **kwargs)
        problem = self.get_problem_size(*args, **kwargs)
        try:
            winner = self._settled.get(problem)
        except TypeError as error:
            raise self._unhashable(problem) from error
        if winner is not None and not detours and self._counts(winner, problem, stage):
            winner.calls += 1
            try:
                if winner.calls < winner.sample_at:
                    return winner.functions[stage](*args, **kwargs)
                winner.sample_at = winner.calls + WHILE_SAMPLED
                return self._sampled(winner, problem, stage, args, kwargs)
            except BaseException:
                if stage == 0:
                    winner.withdraw()  # a first stage that raises begins no pass
                raise
        return self._long_way(problem, stage, args, kwargs)

    def _counts(self, winner: PythonWinner, problem: Hashable, stage: int) -> bool:
        """Return whether the winner answers this stage, and book it in its open passes."""
        if stage > 0:
            return winner.answers(stage)
        if not winner.begin():
            return False
        if self._settled.get(problem) is winner:
            return True
        # Another thread has opened the problem again since it was looked up, and may have counted
        # its passes before.
        winner.withdraw()
        return False


_HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()  # absent before Python 3.13

if TYPE_CHECKING:
    NativeHotPath: type[PythonHotPath] | None
    NativeWinner: type[PythonWinner] | None
    native_timed = timed_in_python
else:
    try:
        if not _HAS_GIL:
            # The extension counts under the GIL: importing it would switch the GIL on.
            raise ImportError("this Python runs without the GIL")
        from bestof.selection import _hot_path
    except (
        ImportError
    ):  # no compiler where it was installed, or another Python than it was built for
        NativeHotPath = NativeWinner = native_timed = None
    else:
        NativeWinner, native_timed = _hot_path.Winner, _hot_path.timed

        class NativeHotPath(LongWay, _hot_path.HotPath):
            """PythonHotPath in C++; see native/hot_path/hot_path.cpp."""

            detours = detours

            def __getstate__(self) -> dict[str, Any]:
                own = ("get_problem_size", "_stage_count", "_settled", "_first")
                return {
                    **self.__dict__,
                    **{name: getattr(self, name) for name in own if hasattr(self, name)},
                }

            def __setstate__(self, state: dict[str, Any]) -> None:
                for name, value in state.items():
                    setattr(self, name, value)


if TYPE_CHECKING:
    HotPath = PythonHotPath
    Winner = PythonWinner
    timed = timed_in_python
elif NativeHotPath is None or os.environ.get("BESTOF_PURE_PYTHON"):
    HotPath, timed = PythonHotPath, timed_in_python
    Winner = PythonWinner if _HAS_GIL else WinnerWithoutGil
else:
    HotPath, Winner, timed = NativeHotPath, NativeWinner, native_timed
