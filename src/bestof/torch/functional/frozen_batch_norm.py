"""Batch norm with fixed statistics, alone or with a ReLU. The backward pass needs no input.

The forward pass keeps its result, which the next layer keeps anyway, and not its input. The
operations "frozen norm" and "frozen norm backward" choose what computes large tensors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bestof.accuracy import DEFAULT_ACCURACY
from bestof.torch.ops import table
from bestof.torch.ops.guards import in_batches, is_plain_call, is_plain_tensor
from bestof.torch.ops.norm.frozen_norm import native
from bestof.torch.ops.norm.frozen_norm_backward import gradient
from bestof.torch.ops.norm.frozen_norm_backward import native as native_backward
from bestof.torch.ops.operation import Call
from bestof.torch.rows.offer import is_chosen_for
from bestof.torch.rows.row_selector import RowSelector, row_selector

# The least size that is chosen for. The native kernel computes smaller tensors.
_LEAST_BYTES = 512 * 2**10


class _Statistics(NamedTuple):
    """What does not change: one number a channel, and eps."""

    mean: Tensor
    variance: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float


def frozen_batch_norm(
    inputs: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    relu: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Return torch.nn.functional.batch_norm with training=False, or the ReLU of it.

    inputs: [N, C, ...]. running_mean, running_var, weight, bias: [C]; None stands for a weight of
    1 and a bias of 0. relu: apply a ReLU too. inplace: the result may overwrite inputs, which the
    program must not read afterwards.

    The pass that keeps no input gives a gradient to inputs alone. It can be differentiated again.
    If weight or bias require a gradient, PyTorch's batch norm computes it and keeps the input.
    PyTorch also answers inside of torch.compile, torch.export and transforms of torch.func, where
    inplace has no effect.

    Raises ValueError for inputs with fewer than two axes, statistics of another shape, or an eps
    below 0.
    """
    statistics = _Statistics(running_mean, running_var, weight, bias, float(eps))
    _check(inputs, statistics)
    fixed = [one for one in statistics[:4] if one is not None]
    trained = torch.is_grad_enabled() and any(one.requires_grad for one in fixed)
    if trained or not is_plain_call() or not all(map(is_plain_tensor, (inputs, *fixed))):
        return _by_pytorch(inputs, statistics, relu)
    relu = bool(relu)  # PyTorch takes numbers for flags too
    inplace = (
        bool(inplace) and not inputs._is_view() and not (inputs.is_leaf and inputs.requires_grad)
    )
    result: Tensor = _FrozenNorm.apply(  # type: ignore[no-untyped-call]  # of torch
        inputs, *statistics, relu, inplace
    )
    return result


def _check(inputs: Tensor, statistics: _Statistics) -> None:
    if inputs.dim() < 2:
        raise ValueError(
            f"inputs: expected two axes or more, [N, C, ...]; got the shape {tuple(inputs.shape)}"
        )
    channels = inputs.shape[1]
    names = ("running_mean", "running_var", "weight", "bias")
    for name, one in zip(names, statistics[:4], strict=True):
        if one is not None and one.shape != (channels,):
            raise ValueError(
                f"{name}: expected one number for each of the {channels} channels of inputs; got "
                f"the shape {tuple(one.shape)}"
            )
    if not statistics.eps >= 0:
        raise ValueError(f"eps: expected a number of at least 0; got {statistics.eps}")


def _by_pytorch(inputs: Tensor, statistics: _Statistics, relu: bool) -> Tensor:
    mean, variance, weight, bias, eps = statistics
    result = functional.batch_norm(inputs, mean, variance, weight, bias, False, 0.0, eps)
    return functional.relu(result) if relu else result


class _FrozenNorm(torch.autograd.Function):
    """y, from inputs and the statistics. Keeps y if a ReLU needs its signs."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        mean: Tensor,
        variance: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        relu: bool,
        inplace: bool,
    ) -> Tensor:
        statistics = _Statistics(mean, variance, weight, bias, eps)
        y = _forward(inputs, statistics, relu, inplace)
        if y is inputs:
            ctx.mark_dirty(inputs)
        ctx.save_for_backward(y if relu else None, *statistics[:4])
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if in_batches(upstream):
            y, _, variance, weight, _ = ctx.saved_tensors
            return gradient(upstream, y, variance, weight, ctx.eps), *[None] * 7
        slope = _Gradient.apply(  # type: ignore[no-untyped-call]  # of torch
            upstream, *ctx.saved_tensors, ctx.eps
        )
        return slope, *[None] * 7


class _Gradient(torch.autograd.Function):
    """The gradient with respect to inputs. It is linear in `upstream`, so it is its own gradient.

    The slope with respect to y is 0 everywhere but at the kink of the ReLU.
    """

    @staticmethod
    def forward(
        ctx: Any,
        upstream: Tensor,
        y: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        statistics = _Statistics(mean, variance, weight, bias, eps)
        ctx.save_for_backward(y, *statistics[:4])
        ctx.eps = eps
        return _backward(upstream, y, statistics)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        slope = _Gradient.apply(  # type: ignore[no-untyped-call]  # of torch
            upstream, *ctx.saved_tensors, ctx.eps
        )
        return slope, *[None] * 6


def _forward(inputs: Tensor, statistics: _Statistics, relu: bool, inplace: bool) -> Tensor:
    """Return y; it is `inputs` itself if `inplace` and the native kernel is chosen."""
    rows = _rows("frozen norm")
    call = rows.operation.call(DEFAULT_ACCURACY, inputs, *statistics, relu)
    if call is None:
        return _by_pytorch(inputs, statistics, relu)
    small = inputs.nbytes < _LEAST_BYTES
    if (small or inplace) and _is_native(rows, call, small):
        rows.calls.count(call.problem)
        return native(None, call.problem, *call.operands, out=inputs if inplace else None)
    return _chosen(rows, call)


def _backward(upstream: Tensor, y: Tensor | None, statistics: _Statistics) -> Tensor:
    """Return the gradient with respect to inputs."""
    _, variance, weight, _, eps = statistics
    rows = _rows("frozen norm backward")
    call = rows.operation.call(DEFAULT_ACCURACY, upstream, y, variance, weight, eps)
    if call is None:
        return gradient(upstream, y, variance, weight, eps)
    if upstream.nbytes < _LEAST_BYTES and _is_native(rows, call, small=True):
        rows.calls.count(call.problem)
        return native_backward(None, call.problem, *call.operands)
    return _chosen(rows, call)


def _rows(name: str) -> RowSelector:
    return row_selector(table.named(name, "frozen_batch_norm"))


def _is_native(rows: RowSelector, call: Call, small: bool) -> bool:
    """Return whether the native kernel answers, without a question to the selector.

    It does for small tensors, unless the configuration leaves it out, and where it is chosen. Rows
    never change their operands, so trials do not work in place.
    """
    if small:
        return is_chosen_for(rows.operation)
    return rows.selector.chosen(call.problem) == "native"


def _chosen(rows: RowSelector, call: Call) -> Tensor:
    rows.calls.count(call.problem)
    result: Tensor = rows.selector(call.problem, *call.operands)
    return result
