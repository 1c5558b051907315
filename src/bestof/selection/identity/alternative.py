"""A named implementation: what a selector chooses from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bestof.errors import InvalidArgument
from bestof.selection.identity.version import is_former, is_renamed, version_of

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A named implementation. The pair `(name, function)` is its short form.

    `function` is a callable, or a sequence of callables. A sequence is a group: one function for
    each stage, chosen together. `depends` are texts on which the speed depends, such as
    `"torch==2.13.0"`; stored evidence is not used if they differ. `supports(problem)` returns false
    if the alternative cannot compute the problem. `mutates` says that a call may change its
    arguments, so that no other alternative can answer after a failed call. `hopeless(problem)` is
    asked before its first trial on a problem, with the lock of the selector held. If it returns
    true, the search leaves the alternative out. In contrast to `supports`, its answer may change as
    trials of other problems come in. `formerly` are the places that the functions had in earlier
    versions of their package, such as `"package:Class.method"`: evidence of these is valid if
    `depends` is the same. `unpromising(problem)` returns why the alternative is not worth a trial
    although it could run. It returns None, False or an empty text if it is worth one. A search
    leaves such an alternative out, and reports give the reason. An order (a pin, BESTOF_FORCE, a
    fixed policy) takes it, and so does a problem for which all others have given wrong results.
    `estimate(problem)` returns the expected cost, in a unit that the estimates of all alternatives
    share, or None if it is unknown. After the first alternative, a search tries the cheapest.
    """

    name: str
    function: Function | Sequence[Function]
    depends: Sequence[str] = ()
    supports: Callable[[Hashable], bool] | None = None
    mutates: bool = False
    hopeless: Callable[[Hashable], bool] | None = None
    formerly: Sequence[str] = ()
    unpromising: Callable[[Hashable], str | Literal[False] | None] | None = None
    estimate: Callable[[Hashable], float | None] | None = None
    _version: str | None = field(default=None, init=False, repr=False, compare=False)

    def can_run(self, problem: Hashable) -> bool:
        """Return whether it can compute the problem, whatever its speed."""
        return self.supports is None or bool(self.supports(problem))

    def left_out(self, problem: Hashable) -> str | None:
        """Return why it is not worth a trial although it could run; None if it is worth one.

        Raises InvalidArgument if `unpromising` returns True, say, which gives no reason.
        """
        if self.unpromising is None:
            return None
        reason: object = self.unpromising(problem)
        if reason is None or reason is False or reason == "":
            return None
        if not isinstance(reason, str):
            raise InvalidArgument(
                f"it must return a text that says why, or None; it returned {reason!r:.60}"
            )
        return reason

    @property
    def is_group(self) -> bool:
        """Whether it is a sequence of functions."""
        return not callable(self.function)

    @property
    def stages(self) -> tuple[Function, ...]:
        """Its functions by stage; a plain alternative has one."""
        return (self.function,) if callable(self.function) else tuple(self.function)

    @property
    def version(self) -> str:
        """The identity for which its evidence is valid (see `version.py`).

        It is computed once, when a selector is made.
        """
        if self._version is None:
            object.__setattr__(self, "_version", version_of(self.stages, self.depends))
        assert self._version is not None
        return self._version

    def has_had(self, version: str) -> bool:
        """Return whether evidence of a version is valid, as that of an earlier bestof may be."""
        return (
            version == self.version
            or is_former(version, self.stages, self.depends)
            or (bool(self.formerly) and is_renamed(version, self.formerly, self.depends))
        )


def parse_alternatives(selector: str, alternatives: Sequence[Any]) -> tuple[Alternative, ...]:
    """Return alternatives from the pairs, or Alternative objects, that a user lists.

    Raises InvalidArgument.
    """
    where = f"BestOf({selector!r}): alternatives"
    if isinstance(alternatives, str | bytes) or not isinstance(alternatives, Sequence):
        raise InvalidArgument(
            f"{where}: expected a list of (name, function) pairs; got {type(alternatives).__name__}"
        )
    if not alternatives:
        raise InvalidArgument(
            f"{where}: expected at least one (name, function) pair; got an empty list"
        )
    parsed = tuple(
        _parse(f"{where}[{position}]", entry) for position, entry in enumerate(alternatives)
    )
    names = [alternative.name for alternative in parsed]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise InvalidArgument(
            f"{where}: names must differ; {', '.join(map(repr, duplicates))} appears twice"
        )
    if len({alternative.is_group for alternative in parsed}) > 1:
        plain = ", ".join(
            repr(alternative.name) for alternative in parsed if not alternative.is_group
        )
        raise InvalidArgument(
            f"{where}: all must be groups, or all plain; {plain} has one function, others have a "
            "list"
        )
    if len({len(alternative.stages) for alternative in parsed}) > 1:
        lengths = ", ".join(
            f"{alternative.name!r} has {len(alternative.stages)}" for alternative in parsed
        )
        raise InvalidArgument(f"{where}: every group needs the same number of functions; {lengths}")
    for alternative in parsed:
        alternative.version  # noqa: B018 - computed now, as no call waits for it yet
    return parsed


def _parse(where: str, entry: Any) -> Alternative:
    if isinstance(entry, Alternative):
        # a copy, without the identity that another process has computed
        alternative = replace(entry)
    elif isinstance(entry, tuple | list) and len(entry) == 2:
        alternative = Alternative(*entry)
    else:
        raise InvalidArgument(f"{where}: expected a pair (name, function); got {entry!r}")
    if not isinstance(alternative.name, str) or not alternative.name.strip():
        raise InvalidArgument(
            f"{where}: expected a name, a text that is not empty; got {alternative.name!r}"
        )
    if isinstance(alternative.depends, str):
        raise InvalidArgument(
            f"{where} ({alternative.name!r}): depends: expected a list of texts; got one text"
        )
    if not all(isinstance(text, str) for text in alternative.depends):
        raise InvalidArgument(
            f"{where} ({alternative.name!r}): depends: expected texts; got {alternative.depends!r}"
        )
    for field_name in ("supports", "unpromising", "hopeless", "estimate"):
        value = getattr(alternative, field_name)
        if value is not None and not callable(value):
            raise InvalidArgument(
                f"{where} ({alternative.name!r}): {field_name}: expected a callable; got "
                f"{type(value).__name__}"
            )
    if not callable(alternative.function) and not isinstance(alternative.function, list | tuple):
        kind = type(alternative.function).__name__
        raise InvalidArgument(
            f"{where} ({alternative.name!r}): expected a callable, or a list of them; got {kind}"
        )
    if not alternative.stages:
        raise InvalidArgument(
            f"{where} ({alternative.name!r}): expected at least one function; got an empty list"
        )
    for stage, function in enumerate(alternative.stages):
        if not callable(function):
            kind = type(function).__name__
            raise InvalidArgument(
                f"{where} ({alternative.name!r}): stage {stage}: expected a callable; got {kind}"
            )
    return alternative
