"""Fakes: a clock that alternatives advance, alternatives that name themselves, a store in a dict,
comparisons that take time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bestof import BestOf
from bestof.selection import Verdict, Verifier
from bestof.selection.store.record import Record


class Clock:
    """Seconds that pass only where somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        """So much time goes by."""
        self.now += seconds


class Program:
    """A program under test: a clock, and the names of what was called, in order."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.calls: list[str] = []

    def function(self, name: str, seconds: float, answer: Any = None) -> Callable[..., Any]:
        """Takes so long, and answers its own name unless told otherwise: a test sees who
        answered."""

        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self.clock.passes(seconds)
            return name if answer is None else answer

        return called

    def failing(self, name: str, error: BaseException, seconds: float = 1.0) -> Callable[..., Any]:
        """Raises the error, always."""

        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self.clock.passes(seconds)
            raise error

        return called

    def selector(
        self, alternatives: Any, get_problem_size: Any = None, name: str = "it", **options: Any
    ) -> BestOf:
        """A selector on this clock, by the paper's rounds unless told otherwise."""
        if "policy" not in options and "rounds" not in options and "neighbours" not in options:
            options["policy"] = "rounds:rounds=2"
        if isinstance(alternatives, dict):
            alternatives = [
                (key, self.function(key, seconds)) for key, seconds in alternatives.items()
            ]
        size = get_problem_size or (lambda *args, **kwargs: args[:1])
        return BestOf(name, alternatives, size, clock=self.clock, **options)

    def taken(self) -> list[str]:
        """The calls since the last time that this was asked."""
        calls, self.calls = self.calls, []
        return calls


class DictStore:
    """A store that forgets nothing, counts what it is asked, and merges as stores do."""

    url = "dict:"

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Record] = {}
        self.pins: dict[str, str] = {}
        self.loads = 0
        self.saves = 0

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        self.loads += 1
        return self.kept.get((selector, problem))

    def save(self, record: Record) -> None:
        self.saves += 1
        old = self.kept.get((record.selector, record.problem))
        evidence = {one.alternative: one for one in (old.evidence if old is not None else ())}
        evidence.update((one.alternative, one) for one in record.evidence)
        decision = record.decision or (old.decision if old is not None else None)
        self.kept[record.selector, record.problem] = Record(
            record.selector,
            record.problem,
            record.host,
            decision,
            tuple(evidence.values()),
            record.updated,
        )

    def records(self, selector: str | None = None) -> Iterable[Record]:
        return list(self.kept.values())

    def clear(self, selector: str | None = None) -> int:
        return 0

    def close(self) -> None:
        pass

    def pinned(self, selector: str, problem: str | None, host: str | None = None) -> str | None:
        return self.pins.get(selector)


class BrokenStore(DictStore):
    """A store that cannot do anything, though it has no pins."""

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        self.loads += 1
        raise OSError("the disk is gone")

    def save(self, record: Record) -> None:
        self.saves += 1
        raise OSError("the disk is gone")


class DearComparison(Verifier):
    """Takes so many seconds for each comparison with the first alternative."""

    def __init__(self, program: Program, seconds: float) -> None:
        self._program, self._seconds = program, seconds

    def trusts(self, alternative: str) -> bool:
        return alternative == "first"

    def expect(self, stage: int, args: tuple[Any, ...]) -> None:
        self._program.clock.passes(self._seconds)

    def judge(
        self, alternative: str, stage: int, args: tuple[Any, ...], expected: Any, got: Any
    ) -> Verdict:
        return Verdict(got)

    def put_back(self, expected: Any) -> None:
        raise AssertionError("no alternative raises")
