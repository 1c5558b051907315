"""Decide which input shapes a plan keeps: by the number and the time of the model's answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable
from dataclasses import dataclass

# The input shapes that a plan keeps, unless `optimize(..., shapes=)` says otherwise.
SHAPES = 32

# Of the arenas of all kept shapes; or four times the largest of them, if that is more.
_ARENAS, _LARGEST = 2**30, 4

# A shape is planned once the model has answered it as often as this, and for as long as planning
# takes; or if the model is so fast that this does not happen, once it has been met PATIENCE times.
MEETINGS, PATIENCE = 4, 16

# Where one shape replaces another: how many times longer than planning takes the model must have
# answered since the last replacement. So planning takes a tenth of the time at the most, even if
# shapes never settle.
_BETWEEN = 10.0

# Epochs after which a plan is called crowded. After one, other shapes may just have taken over.
_CROWDED = 2

# New shapes whose meetings are counted; beyond, those that were met longest ago are forgotten.
_COUNTED = 1024


@dataclass(slots=True)
class _Meetings:
    """How often the model answered a shape that is not planned, and for how many seconds."""

    count: int = 0
    seconds: float = 0.0


_NEVER = _Meetings()


class Admission:
    """Decides which input shapes are planned during calls.

    The model answers calls of a shape that is not planned, and `tell` notes how long each took.
    `is_due` says whether the shape should be planned now: it has come back, and there is room. If
    there is no room, an epoch begins: each kept shape counts as unmet until `meet` is told of a
    call of that shape. A new shape that is met several times in this epoch replaces a kept shape
    that is not met at all. So shapes that take turns do not evict each other. Asks no clock, and
    starts nothing.
    """

    def __init__(self, shapes: int = SHAPES) -> None:
        self.shapes = shapes
        self.epoch = 0
        self._new: OrderedDict[Hashable, _Meetings] = OrderedDict()
        self._kept: set[Hashable] = set()  # when the epoch began
        self._unmet: set[Hashable] = set()
        self._full = 0  # successive epochs in which all kept shapes were met
        self._refused: set[Hashable] = set()
        self._planning = 0.0
        self._since = 0.0

    def tell(self, key: Hashable, seconds: float) -> None:
        """Note that the model answered a shape."""
        met = self._new.setdefault(key, _Meetings())
        met.count += 1
        met.seconds += seconds
        self._new.move_to_end(key)
        if len(self._new) > _COUNTED:
            self._new.popitem(last=False)
        self._since += seconds

    def planned(self, key: Hashable, seconds: float) -> None:
        """Note that a shape was planned, and how long that took."""
        self._planning = seconds
        self._new.pop(key, None)

    def refuse(self, key: Hashable) -> None:
        """Note that a shape cannot be planned, so that nothing tries again."""
        if len(self._refused) >= _COUNTED:
            self._refused.clear()
        self._refused.add(key)

    def meet(self, key: Hashable) -> None:
        """Note a call of a kept shape. Only the first call of a shape in an epoch matters."""
        self._unmet.discard(key)

    @property
    def is_crowded(self) -> bool:
        """Return whether shapes that come back find no room, since all kept shapes are met."""
        return self._full >= _CROWDED

    def comes_back(self, key: Hashable) -> bool:
        """Return whether a shape has been met so often that a plan should pay."""
        met = self._new.get(key, _NEVER)
        return (
            key not in self._refused
            and met.count >= MEETINGS
            and (met.seconds >= self._planning or met.count >= PATIENCE)
        )

    def has_room(self, kept: Collection[int]) -> bool:
        """Return whether there is room for one more shape beside kept ones with such arenas."""
        return len(kept) < self.shapes and (
            sum(kept) < max(_ARENAS, _LARGEST * max(kept, default=0))
        )

    def replaceable(self, kept: Collection[Hashable]) -> Hashable | None:
        """Return a kept shape that a shape which comes back should replace; None if there is none.

        kept: the shapes that may be replaced, oldest first. A new epoch begins if no kept shape is
        unmet; `epoch` counts them.
        """
        unmet = [key for key in kept if key in self._unmet]
        if self.epoch == 0 or not unmet:
            same = self.epoch > 0 and self._kept == set(kept)
            self._full = self._full + 1 if same else 0
            self.epoch += 1
            self._kept, self._unmet = set(kept), set(kept)
            self._new.clear()
            return None
        if self._since < _BETWEEN * self._planning:
            return None
        self._since = 0.0
        return unmet[0]
