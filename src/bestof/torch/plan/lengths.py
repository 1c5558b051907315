"""The lengths of inputs that a plan serves by a few planned lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

from bestof.errors import InvalidArgument, TorchError

# Planned lengths by default. Padding then adds a thirty-second of the longest one on average.
_PLANNED = 16


@dataclass(frozen=True)
class Lengths:
    """The lengths that inputs may have. A plan pads them to a few of these, and cuts results.

    most: the longest length; the plan treats longer inputs as it treats any new shape.
    pad: the number that each padded argument is filled up with, by the place of the argument or by
        its name, such as `{"input_ids": 0, "attention_mask": 0}`. Padded arguments are tensors of
        one length. The others stay as they are.
    axis: the axis of padded arguments that has the length. 0 is the batch.
    step: all multiples of `step` up to `most`, and `most` itself, are planned lengths. By default
        there are at most 16 planned lengths.

    Raises InvalidArgument for numbers that cannot be used.
    """

    most: int
    pad: Mapping[int | str, float]
    axis: int = 1
    step: int | None = None

    def __post_init__(self) -> None:
        if not _is_count(self.most) or self.most < 2:
            raise InvalidArgument(
                f"Lengths: most: expected a whole number of at least 2; got {self.most!r}"
            )
        if not isinstance(self.pad, Mapping) or not self.pad:
            raise InvalidArgument(
                "Lengths: pad: expected the number for each padded argument, such as "
                f"{{0: 0, 'attention_mask': 0}}; got {self.pad!r:.80}"
            )
        for name, number in self.pad.items():
            if not (_is_count(name) or isinstance(name, str)):
                raise InvalidArgument(
                    f"Lengths: pad: expected places or names of arguments; got {name!r:.80}"
                )
            if not isinstance(number, (int, float)):
                raise InvalidArgument(
                    f"Lengths: pad: expected a number for {name!r}; got {number!r:.80}"
                )
        if not _is_count(self.axis):
            raise InvalidArgument(
                f"Lengths: axis: expected a whole number of at least 0; got {self.axis!r}"
            )
        if self.step is not None and (not _is_count(self.step) or self.step < 2):
            raise InvalidArgument(
                f"Lengths: step: expected a whole number of at least 2; got {self.step!r}"
            )

    @property
    def planned(self) -> tuple[int, ...]:
        """The planned lengths, shortest first."""
        step = self.step
        if step is None:
            step = 8 * -(-self.most // (8 * _PLANNED))
        return (*range(step, self.most, step), self.most)

    def planned_for(self, length: int) -> int:
        """Return the planned length that serves a length, from 1 to `most`."""
        return next(one for one in self.planned if one >= length)

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """Return the length of padded arguments.

        Raises TorchError if one is missing, is no tensor with such an axis, or has another length.
        """
        found: dict[int, str] = {}
        for name in self.pad:
            place = f"argument {name}" if isinstance(name, int) else name
            one = _argument(name, args, kwargs)
            if not isinstance(one, Tensor) or one.dim() <= self.axis:
                given = tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__
                raise TorchError(
                    f"optimize: {place}: lengths pad axis {self.axis} of a tensor; got {given}"
                )
            found.setdefault(one.shape[self.axis], place)
        if len(found) > 1:
            different = ", ".join(f"{place} has {length}" for length, place in found.items())
            raise TorchError(f"optimize: padded arguments must have one length; {different}")
        return next(iter(found))

    def resized(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], length: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with another length: filled up, or cut."""

        def changed(name: int | str, one: Any) -> Any:
            return _resized(one, self.axis, length, self.pad[name]) if name in self.pad else one

        return (
            tuple(changed(place, one) for place, one in enumerate(args)),
            {name: changed(name, one) for name, one in kwargs.items()},
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _argument(name: int | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if isinstance(name, str):
        return kwargs.get(name)
    return args[name] if name < len(args) else None


def _resized(one: Tensor, axis: int, length: int, number: float) -> Tensor:
    given = one.shape[axis]
    if given >= length:
        return one.narrow(axis, 0, length)
    behind = one.dim() - 1 - axis
    return functional.pad(one, [0, 0] * behind + [0, length - given], value=number)
