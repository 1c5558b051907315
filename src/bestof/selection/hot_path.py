"""The settled call: problem, look-up, winner. Everything else takes the long way.

`HotPath` is the native type where the extension was built, and PythonHotPath where it was not, or where the environment
variable BESTOF_PURE_PYTHON is set. Either reads two dictionaries and takes no lock, and one contract suite runs over
both. Beyond the problem function and the winner a call costs about 45 ns natively; in Python 250 ns,
and 400 ns for the stage of a group (`bestof bench dispatch`). The count of settled calls is 35 ns of these.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from bestof.errors import ProblemError
from bestof.selection.trial import detours


class LongWay:
    """What the hot path turns to where it cannot answer a call by itself."""

    name: str

    def _unhashable(self, problem: object) -> ProblemError:
        return ProblemError(
            f"BestOf({self.name!r}): get_problem_size returned {problem!r}, which is not hashable; "
            f"return numbers, texts or tuples of them"
        )

    def _long_way(self, problem: Hashable, stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class PythonHotPath(LongWay):
    """Calls the settled winner of a problem: the reference in plain Python.

    `_settled` maps a problem to the functions of its winner by stage (a plain alternative has the stage 0 alone); any
    thread may put another dict in its place at any time. `_grouped` says whether the first argument of a call is its
    stage. `settled_calls` counts the calls that went straight to a winner, whether it then raised or not.
    """

    get_problem_size: Callable[..., Hashable]
    _grouped: bool = False
    _settled: dict[Hashable, dict[int, Callable[..., Any]]]
    settled_calls: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._grouped:
            return self._call_stage(*args, **kwargs)
        problem = self.get_problem_size(*args, **kwargs)
        try:
            winner = self._settled.get(problem)
        except TypeError as error:
            raise self._unhashable(problem) from error
        if winner is not None and not detours:
            self.settled_calls += 1  # no thread switch can happen within: CPython looks for one at calls and jumps
            return winner[0](*args, **kwargs)
        return self._long_way(problem, 0, args, kwargs)

    def _call_stage(self, stage: int, /, *args: Any, **kwargs: Any) -> Any:
        problem = self.get_problem_size(*args, **kwargs)
        try:
            winner = self._settled.get(problem)
        except TypeError as error:
            raise self._unhashable(problem) from error
        if winner is not None and not detours:
            function = winner.get(stage)
            if function is not None:
                self.settled_calls += 1
                return function(*args, **kwargs)
        return self._long_way(problem, stage, args, kwargs)


if TYPE_CHECKING:
    NativeHotPath: type[PythonHotPath] | None
else:
    try:
        from bestof.selection import _hot_path
    except ImportError:  # no compiler where it was installed, or another Python than it was built for
        NativeHotPath = None
    else:

        class NativeHotPath(LongWay, _hot_path.HotPath):
            """PythonHotPath in C++; see native/hot_path/hot_path.cpp."""

            detours = detours

            def __getstate__(self) -> dict[str, Any]:
                own = ("get_problem_size", "_grouped", "_settled", "settled_calls")
                return {**self.__dict__, **{name: getattr(self, name) for name in own if hasattr(self, name)}}

            def __setstate__(self, state: dict[str, Any]) -> None:
                for name, value in state.items():
                    setattr(self, name, value)


if TYPE_CHECKING:
    HotPath = PythonHotPath
else:
    HotPath = PythonHotPath if NativeHotPath is None or os.environ.get("BESTOF_PURE_PYTHON") else NativeHotPath
