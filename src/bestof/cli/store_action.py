"""An action of `bestof store`, and the arguments that several actions share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from bestof.selection.store.protocol import Store


@dataclass(frozen=True, slots=True)
class Action:
    """One row of the table of actions. `arguments` adds the arguments of this action.

    example: words after the name of the action, for its help.
    """

    name: str
    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    act: Callable[[Store, argparse.Namespace], int]
    example: str = ""
