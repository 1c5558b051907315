"""Channels of several arrays in NHWC, gathered into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.array import dtype_of


class ChannelPlan:
    """Channels [start, start + count) of a shuffled concatenation, of arrays in NHWC.

    The arrays have `pixels` pixels each, and as many channels as `widths` says. With g groups, the
    shuffle takes the first channel of each group, then the second of each (Zhang et al., 2018,
    "ShuffleNet"). 1 group leaves all channels where they are. `run` takes addresses and does not
    check them. Construction raises KernelError for what cannot be computed.
    """

    __slots__ = ("_plan", "_sources")

    def __init__(
        self,
        pixels: int,
        widths: Sequence[int],
        *,
        groups: int = 1,
        start: int = 0,
        count: int | None = None,
        dtype: str = "float32",
    ) -> None:
        whole = sum(widths)
        count = whole - start if count is None else count
        if min(pixels, *widths) < 1:
            raise KernelError(f"pixels, widths: expected 1 or more; got {pixels} and {widths}")
        if groups < 1 or whole % groups:
            raise KernelError(f"groups: expected a divisor of {whole} channels; got {groups}")
        if start < 0 or count < 1 or start + count > whole:
            raise KernelError(
                f"start, count: expected a part of {whole} channels; got {start} and {count}"
            )
        runs = list(_runs(widths, groups, start, count))
        self._sources = len(widths)
        self._plan = _native.ChannelPlan(pixels, count, groups, dtype_of(None, dtype), runs)

    def run(self, sources: Sequence[int], out: int) -> None:
        """Gather the channels of the arrays at some addresses into the array at `out`."""
        try:
            if len(sources) != self._sources or not (all(sources) and out):
                raise KernelError(
                    f"addresses: expected {self._sources} sources and a result, none of them 0; "
                    f"got {sources!r} and {out!r}"
                )
            self._plan.run(sources, out)
        except TypeError:
            raise KernelError(
                f"addresses: expected integers from 0 on; got {sources!r} and {out!r}"
            ) from None


def _runs(
    widths: Sequence[int], groups: int, start: int, count: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (source, its width, first channel, channels, first place in the result).

    Places of a run are `groups` apart.
    """
    each = sum(widths) // groups
    for group in range(groups):
        # Channel i of the group comes to place i * groups + group.
        begin = group * each + max(0, -((group - start) // groups))
        end = group * each + min(each, -((group - start - count) // groups))
        before = 0
        for source, width in enumerate(widths):
            first, behind = max(begin, before), min(end, before + width)
            if first < behind:
                at = (first - group * each) * groups + group - start
                yield source, width, first - before, behind - first, at
            before += width
