"""Replays operations of PyTorch that have no line of oneDNN, MKL or bestof.

A capture keeps each call as text: its name, and shape, strides, type and value of each argument.
The projection makes tensors of these sizes, and calls the operation on them. The values of the
tensors are lost. They are 0.5, or 0 where the call writes. Indices of a pooling are spread evenly,
and other indices are 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from bestof.errors import ProfileError
from bestof.profile.peak import Peak
from bestof.profile.projection.aten_work import flops_of_call
from bestof.profile.projection.replayable import (
    check_name,
    check_operands,
    check_sizes,
    check_value,
)
from bestof.profile.span import Span
from bestof.profile.timeline.operation import CONVOLUTIONS

_TYPES = {
    **{"float": torch.float32, "double": torch.float64, "c10::BFloat16": torch.bfloat16},
    **{"c10::Half": torch.float16, "int": torch.int32, "long int": torch.int64},
    **{"signed char": torch.int8, "unsigned char": torch.uint8, "bool": torch.bool},
}
# The profiler does not record the types inside of a list. Lists hold parameters and gradients.
_LISTED = torch.float32

# Reasons why an operation is not replayed.
AROUND = "work and dispatch of PyTorch around calls that have lines"
FRAMEWORK = "functions of autograd and of Python"


@dataclass(frozen=True, slots=True)
class _Argument:
    """One argument as the profiler recorded it. A value is of `kind` Scalar or ScalarList."""

    shape: Sequence[Any]
    strides: Sequence[Any]
    kind: str
    value: Any

    @property
    def is_tensor(self) -> bool:
        return self.kind in _TYPES

    def tensors(self, written: bool, images: int) -> Any:
        """Return a new tensor, a list of tensors, or the value."""
        if self.kind == "TensorList":
            return [
                _tensor(shape, strides, _LISTED, written, images)
                for shape, strides in zip(self.shape, self.strides, strict=True)
            ]
        if self.is_tensor:
            return _tensor(self.shape, self.strides, _TYPES[self.kind], written, images)
        check_value(self.value)
        return self.value

    @property
    def bytes(self) -> int:
        """The bytes of its tensors. Elements that strides of 0 repeat count once."""
        if self.kind == "TensorList":
            return sum(_LISTED.itemsize * prod(shape) for shape in self.shape)
        if not self.is_tensor:
            return 0
        sizes = [n for n, stride in zip(self.shape, self.strides, strict=True) if stride]
        return int(_TYPES[self.kind].itemsize * prod(sizes))


def _tensor(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, written: bool, indices: int
) -> torch.Tensor:
    check_sizes(shape, strides, dtype.itemsize)
    tensor = torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)
    if 0 in strides:
        # An expanded tensor, which cannot be written. Its elements share memory.
        sizes = [n if stride else 1 for n, stride in zip(shape, strides, strict=True)]
        return _tensor(sizes, [s or 1 for s in strides], dtype, written, indices).expand(*shape)
    if dtype == torch.int64 and indices and tensor.dim() > 1:
        plane = prod(shape[-2:])
        spread = torch.arange(plane).mul_(indices).div_(plane, rounding_mode="floor")
        return tensor.copy_(spread.view(*shape[-2:]).expand(*shape))
    # Repeated in-place calls leave 0 alone. They would take 0.5 to denormal numbers.
    return tensor.fill_(0.5 if tensor.is_floating_point() and not written else 0)


@dataclass(frozen=True, slots=True)
class AtenCall:
    """One call of an operation by its recorded arguments."""

    name: str
    arguments: tuple[_Argument, ...]

    @classmethod
    def read(cls, text: str) -> AtenCall | None:
        """Return the call of a span's text, or None for text of another kind."""
        try:
            name, *rows = json.loads(text)
            return cls(name, tuple(_Argument(*row) for row in rows))
        except (ValueError, TypeError, RecursionError):
            return None

    @property
    def bytes(self) -> int:
        """The bytes of all arguments. Results are not counted, except those that are arguments."""
        return sum(one.bytes for one in self.arguments)

    @property
    def flops(self) -> int:
        """The operations of a product or a convolution in float32, and 0 for others.

        Only float32 has a known peak.
        """
        kinds = {one.kind for one in self.arguments if one.is_tensor}
        if kinds != {"float"}:
            return 0
        shapes = [one.shape for one in self.arguments]
        return flops_of_call(self.name, shapes, [one.value for one in self.arguments])

    def least(self, peak: Peak) -> float:
        """Return the least seconds of a call: its operations, or to move each argument once."""
        return max(self.bytes / peak.bandwidth, self.flops / peak.flops)

    def bind(self) -> Callable[[], None]:
        """Return a function that calls the operation on new tensors.

        Raises ProfileError with the first reason if no overload accepts them.
        """
        check_name(self.name)
        reasons = []
        for schema in torch._C._jit_get_schemas_for_operator(self.name):
            if len(schema.arguments) != len(self.arguments):
                continue
            try:
                run = self._bound(schema)
                run()
            except (RuntimeError, TypeError, IndexError, ValueError) as error:
                reasons.append((str(error).strip() or repr(error)).splitlines()[0][:100])
                continue
            return run
        # PyTorch lists the overload for tensors first, so its reason is the helpful one.
        reasons.append("the recorded arguments fit no overload")
        raise ProfileError(f"{self.name} is not replayed: {reasons[0]}")

    def _bound(self, schema: Any) -> Callable[[], None]:
        namespace, name = self.name.split("::", 1)
        packet = getattr(getattr(torch.ops, namespace), name)
        call = getattr(packet, schema.overload_name or "default")
        places: list[Any] = []
        named: dict[str, Any] = {}
        pairs = zip(schema.arguments, self.arguments, strict=True)
        every: dict[str, Any] = {}
        for position, (formal, given) in enumerate(pairs):
            written = formal.alias_info is not None and formal.alias_info.is_write
            if given.kind == "" and formal.has_default_value():
                continue  # not given, or a text, which the profiler does not record
            value = given.tensors(written, self._indices())
            every[formal.name] = value
            if formal.kwarg_only or len(places) < position:
                named[formal.name] = value
            else:
                places.append(value)

        check_operands(self.name, every)

        def run() -> None:
            with torch.no_grad():
                call(*places, **named)

        return run

    def _indices(self) -> int:
        """Return the number of values that an index has: the pixels of a pooled image, or 0."""
        pooling = "max_pool2d" in self.name and self.name.endswith("_backward")
        return prod(self.arguments[1].shape[-2:]) if pooling else 0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step without lines: an operation, the seconds that it and its inner ones took.

    Without a call, `reason` says why the part is not replayed.
    """

    span: Span
    seconds: float
    call: AtenCall | None
    reason: str = ""


def parts_of(spans: Sequence[Span]) -> Iterator[Part]:
    """Divide the operations of a step into parts. Spans are in the order of time.

    An operation that has a call contains its inner operations. All others are parts of their own.
    """
    open_: dict[int, tuple[Span, float]] = {}
    issuers = _with_lines(spans)
    for span in spans:
        if span.kind != "operation":
            continue
        outer = open_.get(span.thread)
        if outer is not None and span.depth > outer[0].depth:
            open_[span.thread] = (outer[0], outer[1] + span.self_seconds)
            continue
        if outer is not None:
            yield Part(*open_.pop(span.thread), AtenCall.read(outer[0].text))
        if span.text and id(span) not in issuers:
            open_[span.thread] = (span, span.self_seconds)
        else:
            reason = AROUND if span.name.startswith("aten::") else FRAMEWORK
            yield Part(span, span.self_seconds, None, reason)
    for span, seconds in open_.values():
        yield Part(span, seconds, AtenCall.read(span.text))


def _with_lines(spans: Sequence[Span]) -> set[int]:
    """Return the identities of the convolutions that contain lines."""
    open_: dict[int, Span] = {}
    found = set()
    for span in spans:
        outer = open_.get(span.thread)
        if span.kind == "operation":
            if outer is not None and span.depth <= outer.depth:
                del open_[span.thread]
                outer = None
            if outer is None and span.name in CONVOLUTIONS:
                open_[span.thread] = span
        elif span.kind == "line" and outer is not None:
            found.add(id(outer))
    return found
