"""One thing that `bestof store` can do, and the arguments that several of them share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from bestof.selection.store.protocol import Store


@dataclass(frozen=True, slots=True)
class Action:
    """One row of the table of what can be done to a store; `arguments` adds those of its own."""

    name: str
    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    act: Callable[[Store, argparse.Namespace], int]


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`, for whatever prints a table."""
    parser.add_argument("--json", action="store_true", help="print JSON")
