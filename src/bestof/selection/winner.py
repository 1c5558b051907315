"""Who answers the calls of a settled problem, and how many it has answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NEVER = 2**64 - 1  # the count of calls that is not reached


class PythonWinner:
    """The functions of a settled problem's alternative by stage (a plain alternative has one), and two counts.

    `calls`: how many went straight to these functions, whether they then raised or not. `sample_at`: the call that
    brings `calls` to this is handed to `_sampled` of its selector; the hot path sets it to NEVER as it does so.
    """

    __slots__ = ("calls", "functions", "sample_at")

    def __init__(self, functions: tuple[Callable[..., Any], ...], sample_at: int = NEVER) -> None:
        self.functions = functions
        self.sample_at = sample_at
        self.calls = 0
