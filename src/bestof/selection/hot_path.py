"""The settled call: problem, look-up, winner. Everything else takes the long way.

This is the reference in plain Python; it reads two dictionaries and takes no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from bestof.errors import ProblemError
from bestof.selection.trial import detours


class HotPath:
    """Calls the settled winner of a problem.

    `_settled` maps a problem to the functions of its winner by stage (a plain alternative has the stage 0 alone).
    """

    name: str
    get_problem_size: Callable[..., Hashable]
    _grouped: bool
    _settled: dict[Hashable, dict[int, Callable[..., Any]]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._grouped:
            return self._call_stage(*args, **kwargs)
        problem = self.get_problem_size(*args, **kwargs)
        try:
            winner = self._settled.get(problem)
        except TypeError as error:
            raise self._unhashable(problem) from error
        if winner is not None and not detours:
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
                return function(*args, **kwargs)
        return self._long_way(problem, stage, args, kwargs)

    def _unhashable(self, problem: object) -> ProblemError:
        return ProblemError(
            f"BestOf({self.name!r}): get_problem_size returned {problem!r}, which is not hashable; "
            f"return numbers, texts or tuples of them"
        )

    def _long_way(self, problem: Hashable, stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError
