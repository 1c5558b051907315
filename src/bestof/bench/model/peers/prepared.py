"""A model that a peer has made ready to run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """`run` makes one call: it returns the logits of the example, or the loss of a training step.

    `trials` counts the trials so far, for a peer that chooses while it runs; the peer is settled
    once no call makes any. `replaced` opens a block in which what the peer replaces can be called
    instead: it returns that call. `alone` lets go of everything that `run` does not need.
    """

    run: Run
    trials: Callable[[], int] | None = None
    replaced: Callable[[], AbstractContextManager[Run]] | None = None
    alone: Callable[[], object] | None = None
