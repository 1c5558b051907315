"""What the command line knows of a subcommand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table of subcommands; `module` has the function `call` of `Subcommand`."""

    name: str
    module: str
    summary: str


class Subcommand(Protocol):
    """The module of a subcommand."""

    @property
    def call(self) -> Callable[[Sequence[str]], int | Callable[[], int]]:
        """Parse the arguments after the name, act and print; return the exit status.

        Or return a program that is ready to run. Raises BestofError for what is told in one line,
        and InvalidArgument for wrong usage.
        """
