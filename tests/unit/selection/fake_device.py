"""A fake device that works later: the time of a call is known once a test finishes the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class FakeTiming:
    """One trial; `order` is how many began before it."""

    def __init__(self, device: FakeDevice, order: int) -> None:
        self._device = device
        self.order = order
        self.took: float | None = None
        self.stopped = False

    def stop(self) -> None:
        self._device.check()
        self.stopped = True
        self._device.open = None

    def seconds(self) -> float | None:
        self._device.check()
        assert self.stopped
        assert not self._device.capturing, "asked for a time while a graph is captured"
        self._device.asked += 1
        return self.took if self.order in self._device.done else None


class FakeDevice:
    """A timer, and the alternatives that it times: each takes the seconds that it was made with."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.timings: list[FakeTiming] = []
        self.done: set[int] = set()
        self.open: FakeTiming | None = None
        self.capturing = False
        self.lost: Exception | None = None
        self.asked = 0

    @property
    def paused(self) -> bool:
        return self.capturing

    def start(self, args: tuple[Any, ...]) -> FakeTiming:
        self.check()
        assert not self.capturing, "a trial while a graph is captured"
        self.args = args
        self.open = FakeTiming(self, len(self.timings))
        self.timings.append(self.open)
        return self.open

    def check(self) -> None:
        if self.lost is not None:
            raise self.lost

    def finishes(self, *orders: int) -> None:
        """These trials are done, or all that began."""
        self.done.update(orders or range(len(self.timings)))

    def function(self, name: str, seconds: float) -> Callable[..., str]:
        """Answers its own name at once; the work takes so long."""

        def called(*_: Any) -> str:
            self.calls.append(name)
            if self.open is not None:
                self.open.took = (self.open.took or 0.0) + seconds
            return name

        return called

    def taken(self) -> list[str]:
        """The calls since the last time that this was asked."""
        calls, self.calls = self.calls, []
        return calls
