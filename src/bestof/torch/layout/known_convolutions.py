"""Refuses convolutions in channels last that oneDNN is not known to compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bestof.errors import TorchError
from bestof.torch.convolution.memory_format import layout_of
from bestof.torch.convolution.onednn import serves_operator
from bestof.torch.convolution.row import DIRECTIONS

_aten = torch.ops.aten


class KnownConvolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises TorchError before a 2-D convolution on the CPU runs that oneDNN may not serve.

    If gradients are recorded, all three passes are judged before the forward pass runs.
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
        """Judge a convolution, and run the operator."""
        if function is _aten.convolution.default:
            self._judge(*args[:2], *args[3:9])
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
