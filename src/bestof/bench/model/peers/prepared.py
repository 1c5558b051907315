"""A model that one of the peers has made ready to run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """`run` is one call: it gives the logits (an array or a tensor) of the example, or the loss of a training step.

    `trials` counts the trials made so far, of a peer that chooses while it runs: it is settled once no call makes any.
    `alone` lets go of what `run` does not need: a peer that made the model into something of its own.
    `replaced` opens a block in which what the peer replaces may be called instead, by what the block is given.
    """

    run: Run
    trials: Callable[[], int] | None = None
    replaced: Callable[[], AbstractContextManager[Run]] | None = None
    alone: Callable[[], object] | None = None
