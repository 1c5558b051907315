"""A clock that counts how often it was read, so that no result depends on the machine's speed."""

from __future__ import annotations


class EventClock:
    """Stands for `perf_counter`: each reading is a millisecond later than the one before.

    A loop that reads it for every batch then takes the same time with every setting. Under the
    profile function of `breakdown`, which reads it twice an event, the time of a stage is the
    number of calls and returns in it. `seconds` may be raised in between.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 0.001
        return self.seconds
