"""A selector with one settled problem, made of either hot path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bestof.selection.hot_path import NativeHotPath, NativeWinner, PythonHotPath
from bestof.selection.passes import NEVER, PythonWinner

IMPLEMENTATIONS: dict[str, type[PythonHotPath] | None] = {
    "python": PythonHotPath,
    "native": NativeHotPath,
}


def answers_itself(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return ("winner", args, kwargs)


def first_argument(*args: Any, **kwargs: Any) -> Any:
    return args[0]


class Told(list[tuple[Any, ...]]):
    """The calls that took the long way."""


def make_winner(
    kind: type[PythonHotPath], *functions: Callable[..., Any], sample_at: int = NEVER
) -> PythonWinner:
    made = PythonWinner if issubclass(kind, PythonHotPath) else NativeWinner
    assert made is not None
    return made(functions, sample_at)


def make_selector(kind: type[PythonHotPath], *, stages: int = 0, **attributes: Any) -> Any:
    """Problem 1 is settled; a group has so many stages, and its winner answers the second by
    `second_stage`."""

    class Selector(kind):  # type: ignore[valid-type,misc]  # a parameter of the test
        def _long_way(
            self, problem: Any, stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            self.told.append((problem, stage, args, kwargs))
            return "long way"

        def _sampled(
            self, winner: Any, problem: Any, stage: int, args: tuple[Any, ...], kwargs: Any
        ) -> Any:
            self.samples.append((winner, winner.sample_at, problem, stage, args, kwargs))
            winner.sample_at = winner.calls + 3
            return "sampled"

    selector = Selector()
    selector.name = "contract"
    selector.told, selector.samples = Told(), []
    selector.get_problem_size = first_argument
    selector._stage_count = stages
    selector._settled = {1: make_winner(kind, *[answers_itself, *[second_stage] * (stages - 1)])}
    for name, value in attributes.items():
        setattr(selector, name, value)
    return selector


def second_stage(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return ("second", args, kwargs)
