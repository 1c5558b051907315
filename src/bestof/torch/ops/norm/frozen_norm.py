"""Batch norm with fixed statistics, alone or with a ReLU. The backward pass needs no input.

With s = weight / sqrt(running_var + eps) and t = bias - running_mean s, the result is y = x s + t,
or its positive part. The gradient with respect to x is s times the gradient of y, and 0 where a
ReLU returned 0. So the pass keeps y, which the next layer keeps anyway, and not x.

Two alternatives compute each pass: PyTorch's operations, and one native kernel that reads each
operand once. bestof chooses between them for each problem, if the tensor is large enough.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bestof import kernels
from bestof.selection import Alternative, BestOf, Race, UnlessShared
from bestof.torch.backends.depends import DEPENDS
from bestof.torch.ops.dtypes import name_of
from bestof.torch.ops.guards import is_plain_call, is_plain_tensor

_POLICY = Race(tie=0.03, confidence=0.97, max_trials=8)
# The least size that is chosen for. The native kernel computes smaller tensors.
_LEAST_BYTES = 512 * 2**10
_DTYPES = (torch.float32, torch.bfloat16)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class FrozenNormProblem(NamedTuple):
    """One pass of a frozen batch norm over a dense tensor."""

    direction: str
    shape: tuple[int, ...]
    channels_last: bool
    relu: bool
    inplace: bool
    threads: int
    dtype: str = "float32"

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        words = [self.direction, "x".join(map(str, self.shape))]
        words += [self.dtype] * (self.dtype != "float32")
        words += ["channels last"] * self.channels_last + ["relu"] * self.relu
        return " ".join([*words, *["in place"] * self.inplace])


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
    """Return y; it is `inputs` itself if `inplace` and the native kernel ran."""
    last = _channels_last(inputs)
    if last is None or not _is_native(statistics):
        return _by_pytorch(inputs, statistics, relu)
    problem = _problem("forward", inputs, last, relu, inplace)
    if inputs.nbytes < _LEAST_BYTES:
        return _native_forward(problem, inputs, statistics)
    result: Tensor = _choose_forward()(problem, inputs, statistics)
    return result


def _backward(upstream: Tensor, y: Tensor | None, statistics: _Statistics) -> Tensor:
    """Return the gradient with respect to inputs."""
    if y is not None and _channels_last(y):
        upstream = upstream.contiguous(memory_format=_CHANNELS_LAST[y.dim()])
    elif _channels_last(upstream) is None or y is not None:
        upstream = upstream.contiguous()
    last = _channels_last(upstream)
    unlike = y is not None and _channels_last(y) is not last
    if last is None or unlike or not _is_native(statistics):
        return _pytorch_slope(None, upstream, y, statistics)
    problem = _problem("backward", upstream, last, y is not None, False)
    if upstream.nbytes < _LEAST_BYTES:
        return _native_slope(problem, upstream, y, statistics)
    result: Tensor = _choose_backward()(problem, upstream, y, statistics)
    return result


def _is_native(statistics: _Statistics) -> bool:
    return all(
        one is None or (one.dtype is torch.float32 and one.is_contiguous())
        for one in statistics[:4]
    )


def _channels_last(tensor: Tensor) -> bool | None:
    """Return whether channels lie beside one another; None if the kernel cannot read the tensor."""
    if tensor.dtype not in _DTYPES or tensor.numel() == 0 or not is_plain_tensor(tensor):
        return None
    if tensor.is_contiguous():
        return False
    form = _CHANNELS_LAST.get(tensor.dim())
    return True if form is not None and tensor.is_contiguous(memory_format=form) else None


def _rows(tensor: Tensor, last: bool) -> Tensor:
    """Return the C-contiguous view of a tensor."""
    return tensor.detach().movedim(1, -1) if last else tensor.detach()


def _problem(
    direction: str, tensor: Tensor, last: bool, relu: bool, inplace: bool
) -> FrozenNormProblem:
    shape = tuple(tensor.shape)
    threads, dtype = torch.get_num_threads(), name_of(tensor.dtype)
    return FrozenNormProblem(direction, shape, last, relu, inplace, threads, dtype)


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def _native_forward(problem: FrozenNormProblem, inputs: Tensor, statistics: _Statistics) -> Tensor:
    mean, variance, weight, bias = map(_detached, statistics[:4])
    y = inputs if problem.inplace else torch.empty_like(inputs)
    kernels.frozen_norm(
        _rows(inputs, problem.channels_last),
        mean,
        variance,
        weight,
        bias,
        eps=statistics.eps,
        relu=problem.relu,
        channels_last=problem.channels_last,
        out=_rows(y, problem.channels_last),
        threads=problem.threads,
    )
    return y


def _native_slope(
    problem: FrozenNormProblem, upstream: Tensor, y: Tensor | None, statistics: _Statistics
) -> Tensor:
    last = problem.channels_last
    slope = torch.empty_like(upstream)
    kernels.frozen_norm_backward(
        _rows(upstream, last),
        None if y is None else _rows(y, last),
        statistics.variance.detach(),
        _detached(statistics.weight),
        eps=statistics.eps,
        channels_last=last,
        out=_rows(slope, last),
        threads=problem.threads,
    )
    return slope


def _pytorch_forward(problem: FrozenNormProblem, inputs: Tensor, statistics: _Statistics) -> Tensor:
    result = _by_pytorch(inputs, statistics, False)
    return result.relu_() if problem.relu else result


def _pytorch_slope(
    _: FrozenNormProblem | None, upstream: Tensor, y: Tensor | None, statistics: _Statistics
) -> Tensor:
    scale = (statistics.variance + statistics.eps).rsqrt()
    if statistics.weight is not None:
        scale = scale * statistics.weight
    masked = upstream if y is None else torch.ops.aten.threshold_backward(upstream, y, 0)
    slope: Tensor = (masked * scale.view(-1, *[1] * (upstream.dim() - 2))).to(upstream.dtype)
    return slope


@cache
def _choose_forward() -> BestOf:
    return _selector("frozen norm", _pytorch_forward, _native_forward)


@cache
def _choose_backward() -> BestOf:
    return _selector("frozen norm, gradient", _pytorch_slope, _native_slope)


def _selector(name: str, as_is: Any, native: Any) -> BestOf:
    return BestOf(
        name,
        [Alternative("as is", as_is, DEPENDS), Alternative("native", native, DEPENDS)],
        lambda problem, *_: problem,
        policy=UnlessShared(_POLICY),
    )
