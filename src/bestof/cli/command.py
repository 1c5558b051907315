"""What the command line knows about a subcommand."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table of subcommands. `module` contains the function `call` of
    `Subcommand`."""

    name: str
    module: str
    summary: str


class Subcommand(Protocol):
    """The module of a subcommand."""

    @property
    def call(self) -> Callable[[Sequence[str]], int | Callable[[], int]]:
        """Parse the arguments after the name, act and print. Return the exit status.

        It may also return a program that is ready to run. Raises BestofError for an error that is
        printed in one line, and InvalidArgument for wrong usage.
        """

    @property
    def make_parser(self) -> Callable[[], argparse.ArgumentParser]:
        """Return the parser of the arguments, for `bestof completion`."""
