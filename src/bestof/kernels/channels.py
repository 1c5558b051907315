"""Channels of several arrays in NHWC, gathered into one, and perhaps normed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.array import Array, check_detached, dtype_of
from bestof.kernels.pair import pitch_of
from bestof.kernels.problem import Activation, activation_of


class ChannelPlan:
    """Channels [start, start + count) of a shuffled concatenation, of arrays in NHWC.

    The arrays have `pixels` pixels each, and as many channels as `widths` says. With g groups, the
    shuffle takes the first channel of each group, then the second of each (Zhang et al., 2018,
    "ShuffleNet"). 1 group leaves all channels where they are.

    scale, shift: float32, a number for each channel of the result, which are copied. The result is
    then activation(x * scale + shift + residual): computed in float32, and rounded once. They
    need 1 group. activation: as in `conv2d`; it needs them.

    held: places of the arrays whose channels the result holds already; they are not read.
    pitch: elements from pixel to pixel of the result, by default its channels. With a pitch, the
    result is a part of the channels of wider pixels, and the others stay as they are. It needs 1
    group, and no scale.

    `run` takes addresses and does not check them. Construction raises KernelError for what cannot
    be computed.
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
        scale: Array | None = None,
        shift: Array | None = None,
        activation: Activation = None,
        held: Collection[int] = (),
        pitch: int | None = None,
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
        name, slope = activation_of(activation)
        if (scale is None) != (shift is None) or (name and scale is None):
            raise KernelError("scale, shift: expected both, or neither and no activation")
        wide = pitch_of(pitch)
        if wide and wide < count:
            raise KernelError(f"pitch: expected {count} or more; got {pitch}")
        if wide and (groups > 1 or scale is not None):
            raise KernelError("pitch: expected none for a channel shuffle or a norm")
        if not set(held) <= set(range(len(widths))):
            raise KernelError(f"held: expected places below {len(widths)}; got {sorted(held)}")
        runs = [one for one in _runs(widths, groups, start, count) if one[0] not in held]
        self._sources = len(widths)
        self._plan = _native.ChannelPlan(pixels, wide or count, groups, dtype_of(None, dtype), runs)
        if scale is not None:
            check_detached(scale=scale, shift=shift)
            self._plan.set_norm(scale, shift, name, slope)

    def run(self, sources: Sequence[int], out: int, residual: int = 0) -> None:
        """Gather the channels of the arrays at some addresses into the array at `out`.

        residual: the address of an array as `out`, for plans with a scale; 0 if there is none.
        """
        self.bind(sources, out, residual)()

    def bind(self, sources: Sequence[int], out: int, residual: int = 0) -> Callable[[], None]:
        """Return a function that runs on these addresses, for calls without a check."""
        try:
            if len(sources) != self._sources or not (all(sources) and out):
                raise KernelError(
                    f"addresses: expected {self._sources} sources and a result, none of them 0; "
                    f"got {sources!r} and {out!r}"
                )
            return _native.BoundChannels(self._plan, sources, residual, out).run
        except TypeError:
            raise KernelError(
                f"addresses: expected integers from 0 on; got {sources!r}, {out!r} and {residual!r}"
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
