"""Refuses operators in channels last whose kernels are not known, or not exact, there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bestof.errors import TorchError
from bestof.torch.ops.convolution.direction import DIRECTIONS
from bestof.torch.ops.convolution.onednn import serves_operator
from bestof.torch.ops.memory_format import layout_of

_aten = torch.ops.aten


class KnownOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises TorchError before an operator on the CPU runs that channels last makes worse.

    That is a 2-D convolution that oneDNN may not serve, and a group norm: PyTorch's errs by 2e-3
    there where it errs by 5e-6 in channels first, if the mean is 100 standard deviations. If
    gradients are recorded, all three passes of a convolution are judged before the forward pass
    runs.
    """

    def __init__(self, with_gradients: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._directions = DIRECTIONS if with_gradients else DIRECTIONS[:1]

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],  # of the protocol
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Judge a convolution or a group norm, and run the operator."""
        if function is _aten.convolution.default:
            self._judge(*args[:2], *args[3:9])
        elif function is _aten.native_group_norm.default and _is_in_channels_last(args[0]):
            raise TorchError(
                f"PyTorch's group norm of {tuple(args[0].shape)} is less exact in channels last; "
                "the model keeps its layout"
            )
        return function(*args, **(kwargs or {}))

    def _judge(
        self,
        x: Tensor,
        weight: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> None:
        if x.dim() != 4 or x.device.type != "cpu":
            return
        if "channels_last" not in (layout_of(x), layout_of(weight)):
            return
        step, pad, spread, more = (
            (one[0], one[-1]) for one in (stride, padding, dilation, output_padding)
        )
        dtype = str(x.dtype).removeprefix("torch.")
        geometry = step, pad, spread, groups, more if transposed else None
        if not serves_operator(
            x.shape, weight.shape, dtype, *geometry, directions=self._directions
        ):
            raise TorchError(
                f"oneDNN is not known to compute a convolution of {tuple(weight.shape)} weights on "
                f"{tuple(x.shape)} in channels last, stride {step}, padding {pad}, "
                f"dilation {spread}; the model keeps its layout"
            )


def _is_in_channels_last(x: Tensor) -> bool:
    return x.dim() in (4, 5) and x.device.type == "cpu" and layout_of(x) == "channels_last"
