"""Answers 3-D convolutions by the operations of their three passes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bestof.errors import NoAlternative
from bestof.torch.dispatch.convolution.layer import Gradients, Mask
from bestof.torch.dispatch.convolution.shortcut import Note
from bestof.torch.dispatch.override import Override
from bestof.torch.ops.convolution.recognition import Geometry
from bestof.torch.ops.operation import Call

_ZEROS = (0, 0, 0)


class VolumeConvolution:
    """The overrides of the three passes, which the override of `aten::convolution` asks.

    Both functions return None for what PyTorch's own kernel answers. It computes both gradients in
    one call if it was chosen for both.
    """

    def __init__(self, overrides: Sequence[Override]) -> None:
        """overrides: of the forward pass, the input gradient and the weight gradient."""
        self._forward, *self._gradients = overrides

    def forward(
        self, note: Note, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
    ) -> Tensor | None:
        """Return the output (N, K, D', P, Q)."""
        *axes, groups = geometry
        call = self._forward.call(input, weight, bias, *axes, False, _ZEROS, groups)
        if call is None:
            return None
        if _is_as_is(self._forward, call):
            note([self._forward.calls.counter(call.problem)])
        try:
            return self._forward.answer(call)  # type: ignore[no-any-return]
        except NoAlternative:  # for example, memory is short; the program gets PyTorch's own error
            return None

    def backward(
        self,
        note: Note,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        geometry: Geometry,
        mask: Mask,
    ) -> Gradients | None:
        """Return the gradients of input, weight and bias that the mask asks for."""
        *axes, groups = geometry
        arguments = (grad_output, input, weight, None, *axes, False, _ZEROS, groups, mask)
        found: list[Tensor | None] = [None, None]
        calls = [
            (place, one, one.call(*arguments))
            for place, one in enumerate(self._gradients)
            if mask[place]
        ]
        if all(call is None or _is_as_is(one, call) for _, one, call in calls):
            counts = [one.calls.counter(call.problem) for _, one, call in calls if call is not None]
            for count in counts:
                next(count)
            note(counts)
            return None
        try:
            for place, one, call in calls:
                if call is None:
                    return None
                found[place] = one.answer(call)
        except NoAlternative:
            return None
        return found[0], found[1], grad_output.sum((0, 2, 3, 4)) if mask[2] else None


def _is_as_is(override: Override, call: Call) -> bool:
    """Return whether PyTorch's own kernel was chosen for a call."""
    return override.selector.chosen(call.problem) == override.operation.rows[0].name
