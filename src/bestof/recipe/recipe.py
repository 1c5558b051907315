"""The recipe: settings for one script on one machine, and the measurements that they rest on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from bestof import distribution
from bestof.accuracy import DEFAULT_ACCURACY, Accuracy, parse_accuracy
from bestof.errors import BestofError, InvalidArgument
from bestof.escaped import escaped
from bestof.recipe.settings import Settings, parse_settings
from bestof.selection.identity.host import host
from bestof.selection.policies.paired import speedup
from bestof.whole_file import write_whole

VERSION = 1

TOTAL = "all together"
"""The name of the comparison of all kept settings with the untuned script."""


def this_machine() -> dict[str, str]:
    """Return what a recipe depends on: the machine, and the versions of torch and bestof."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "none"
    return {"host": host(), "torch": torch, "bestof": distribution.VERSION}


@dataclass(slots=True)
class Comparison:
    """A candidate against what stood before it.

    ratios: seconds of a step as it stood / seconds with the candidate, one for each pair of turns.
    kept: None while it is not decided. why: the reason where times do not tell it.
    """

    part: str
    standing: Settings
    candidate: Settings
    ratios: list[float] = field(default_factory=list)
    kept: bool | None = None
    why: str = ""

    def line(self) -> str:
        """Return the result in one line."""
        changed = self.candidate.differences(self.standing)
        values = ", ".join(f"{name}={json.dumps(value)}" for name, value in changed.items())
        kept = {True: "kept", False: "not kept", None: "not decided"}[self.kept]
        found = speedup(self.ratios)
        measured = "" if found is None else f"speed-up {found}"
        told = "; ".join(text for text in (measured, self.why) if text)
        return f"{self.part} ({values}): {kept}{told and '; ' + told}"


@dataclass(slots=True)
class Recipe:
    """What `bestof tune` has found. `complete`: no part is left to measure."""

    script: list[str]
    accuracy: Accuracy = DEFAULT_ACCURACY
    settings: Settings = field(default_factory=Settings)
    comparisons: list[Comparison] = field(default_factory=list)
    complete: bool = False
    machine: dict[str, str] = field(default_factory=this_machine)

    @property
    def is_measured(self) -> bool:
        """Whether it holds a pair of turns, or the result that nothing had to be measured."""
        return self.complete or any(one.ratios for one in self.comparisons)

    def chosen(self) -> str:
        """Return the settings in one line; empty without any."""
        changes = self.settings.changes()
        return ", ".join(f"{name}={json.dumps(value)}" for name, value in changes.items())

    def lines(self) -> list[str]:
        """Return what each part has gained."""
        state = "" if self.complete else " so far"
        nothing = "none"
        if self.complete:
            measured = all(one.ratios for one in self.comparisons)
            fastest = "the script is fastest as it is"
            nothing = f"none; {fastest if measured else 'nothing that could be compared is faster'}"
        lines: list[str] = []
        left: dict[str, None] = {}  # without a pair; each part once, however many values it has
        for one in self.comparisons:
            if one.kept is None and not one.ratios:
                left[one.part] = None
            else:
                lines.append(one.line())
        if left:
            lines.append(f"not compared yet: {', '.join(left)}")
        return [*lines, f"settings{state}: {self.chosen() or nothing}"]

    def save(self, path: Path) -> None:
        """Write the file. A reader sees the old one or the new one, never a part."""
        text = json.dumps(self._content(), indent=2)
        try:
            write_whole(path, text + "\n")
        except OSError as error:
            raise BestofError(
                f"the recipe {str(path)!r} cannot be written: {error.strerror or error}"
            ) from error

    def _content(self) -> dict[str, Any]:
        comparisons = []
        for one in self.comparisons:
            found = speedup(one.ratios)
            times = None if found is None else asdict(found)
            comparisons.append(
                {
                    "part": one.part,
                    "kept": one.kept,
                    "why": one.why,
                    "speedup": times,
                    "standing": one.standing.changes(),
                    "candidate": one.candidate.changes(),
                    "ratios": [round(ratio, 5) for ratio in one.ratios],
                }
            )
        return {
            "bestof recipe": VERSION,
            "settings": self.settings.changes(),
            "complete": self.complete,
            "script": self.script,
            "accuracy": self.accuracy,
            "machine": self.machine,
            "comparisons": comparisons,
        }


def read_recipe(path: Path, remedy: str = "run `bestof tune` here") -> Recipe:
    """Return the recipe in a file. Raises InvalidArgument for one that is not for this machine.

    remedy: what to do if the file cannot be used, for messages.
    """
    where = f"the recipe {str(path)!r}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{where} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{where} is no JSON: {error}; {remedy}") from None
    if not isinstance(content, Mapping) or "bestof recipe" not in content:
        raise InvalidArgument(f"{where} is no recipe of `bestof tune`; {remedy}")
    if content["bestof recipe"] != VERSION:
        raise InvalidArgument(
            f"{where} has the version {content['bestof recipe']!r}, and this bestof reads "
            f"{VERSION}; {remedy}"
        )
    _check_machine(content.get("machine"), where, remedy)
    try:
        return Recipe(
            script=[str(word) for word in content["script"]],
            accuracy=parse_accuracy(content["accuracy"], f"{where}: accuracy"),
            settings=parse_settings(content["settings"], f"{where}: settings"),
            comparisons=[_comparison(one, where) for one in content["comparisons"]],
            complete=bool(content["complete"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InvalidArgument(
            f"{where} is damaged: {type(error).__name__}: {error}; {remedy}"
        ) from None


def _check_machine(machine: object, where: str, remedy: str) -> None:
    made = machine if isinstance(machine, Mapping) else {}
    for name, here in this_machine().items():
        if made.get(name) != here:
            raise InvalidArgument(
                f"{where} was made for the {name} {made.get(name)!r}, and this is {here!r}; "
                f"{remedy}"
            )


def _comparison(values: Mapping[str, Any], where: str) -> Comparison:
    kept = values["kept"]
    if kept is not None and not isinstance(kept, bool):
        raise ValueError(f"kept: expected true, false or null; got {kept!r}")
    return Comparison(
        part=escaped(str(values["part"])),
        standing=parse_settings(values["standing"], f"{where}: standing"),
        candidate=parse_settings(values["candidate"], f"{where}: candidate"),
        ratios=[float(ratio) for ratio in values["ratios"]],
        kept=kept,
        why=escaped(str(values["why"])),
    )
