"""LAMB: Adam with an update whose length is the learning rate times the length of the tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter
from torch.optim.optimizer import Optimizer, ParamsT

from bestof.errors import KernelError
from bestof.kernels import lamb_step
from bestof.torch.ops.dtypes import SHORT


class LAMB(Optimizer):
    """Layer-wise adaptive moments (You et al., 2020, "Large batch optimization for deep learning").

    Algorithm 2 of the paper, with phi the identity. For each tensor x with gradient g in step t:
        m = beta1 m + (1 - beta1) g         v = beta2 v + (1 - beta2) g^2
        r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
        u = r + weight_decay x              x = x - lr |x| / |u| u
    If |x| or |u| is 0, |x| / |u| is taken for 1.

    params, lr, betas, eps, weight_decay, maximize: as in torch.optim.AdamW. foreach: whether all
    tensors of a group go through each operation of PyTorch together. None: they do if all of them
    are on CUDA, and a float32 tensor on the CPU goes through one native kernel. True and False give
    the same bits. float16 and bfloat16 on the CPU go one by one. The state of a tensor (`step`,
    `exp_avg`, `exp_avg_sq`) has its dtype.

    Norms are taken in float64, and v saturates at the largest number of its dtype. So finite
    gradients give finite updates, if eps > 0 and beta1^2 <= beta2. A NaN in a tensor or its
    gradient reaches the whole tensor, as the norm is NaN.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not lr >= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if not eps >= 0.0:
            raise ValueError(f"Invalid epsilon value: {eps}")
        for index, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
        if not weight_decay >= 0.0:
            raise ValueError(f"Invalid weight_decay value: {weight_decay}")
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "foreach": foreach,
                "maximize": maximize,
            },
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled optimizer, or groups of a state dict that is older than an option."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("foreach", None)
            group.setdefault("maximize", False)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all tensors that have a gradient; return what `closure`, called first, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            together: dict[object, list[_Operands]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    key = param.device, param.dtype
                    together.setdefault(key, []).append(self._operands(param, group))
            foreach = group["foreach"]
            if foreach is None and not torch.compiler.is_compiling():
                together = {
                    key: [one for one in operands if not _update_natively(one, group)]
                    for key, operands in together.items()
                }
            if foreach is None:
                foreach = all(param.device.type == "cuda" for param in group["params"])
            for operands in filter(None, together.values()):
                one = operands[0].param
                # There, PyTorch's foreach rounds 0.999 to 1, because it multiplies in the dtype
                # itself.
                coarse = one.device.type == "cpu" and one.dtype in SHORT
                (_update_together if foreach and not coarse else _update_each)(operands, group)
        return loss

    def _operands(self, param: Tensor, group: dict[str, Any]) -> _Operands:
        """Return the tensors of one update. Complex tensors become pairs of real numbers."""
        grad = param.grad
        assert grad is not None
        if grad.is_sparse:
            raise RuntimeError("LAMB does not support sparse gradients")
        state = self.state[param]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        state["step"] += 1
        x, slope, m, v = (
            torch.view_as_real(tensor) if param.is_complex() else tensor
            for tensor in (param, grad, state["exp_avg"], state["exp_avg_sq"])
        )
        first, second = group["betas"]
        count = state["step"].item()
        short = 1 - first**count
        factor = short / math.sqrt(1 - second**count)
        return _Operands(x, slope, m, v, factor, short * group["eps"], int(count))


class _Operands(NamedTuple):
    """The tensors of one update; r is exp_avg / (factor * sqrt(exp_avg_sq) + term)."""

    param: Tensor
    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    factor: float
    term: float
    step: int


def _update_natively(operands: _Operands, group: dict[str, Any]) -> bool:
    """Update one tensor by the native kernel; false if it cannot be, and nothing was written."""
    arrays = _rows(operands)
    if arrays is None or abs(group["weight_decay"]) > torch.finfo(torch.float32).max:
        return False
    try:
        lamb_step(
            *arrays,
            step=operands.step,
            lr=float(group["lr"]),
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
            threads=torch.get_num_threads(),
        )
    except KernelError:  # tensors that share memory, such as a gradient that is the parameter
        return False
    # Autograd, and whoever watches a weight, must see that these were written.
    increment_version([operands.param, operands.exp_avg, operands.exp_avg_sq])
    return True


def _rows(operands: _Operands) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Return the four tensors as C-contiguous ones of the same memory; None if they are not."""
    tensors = operands[:4]
    for tensor in tensors:
        plain = type(tensor) in (Tensor, Parameter) and tensor.layout is torch.strided
        if not plain or tensor.dtype is not torch.float32 or tensor.device.type != "cpu":
            return None
        if tensor.is_neg():
            return None
    rank = operands.param.dim()
    orders = {4: torch.channels_last, 5: torch.channels_last_3d}
    if all(tensor.is_contiguous() for tensor in tensors):
        x, g, m, v = (tensor.detach() for tensor in tensors)
    elif rank in orders and all(
        tensor.is_contiguous(memory_format=orders[rank]) for tensor in tensors
    ):
        x, g, m, v = (tensor.detach().movedim(1, -1) for tensor in tensors)
    else:
        return None
    return x, g, m, v


def _update_each(operands: list[_Operands], group: dict[str, Any]) -> None:
    first, second = group["betas"]
    for param, grad, exp_avg, exp_avg_sq, factor, term, _ in operands:
        slope = -grad if group["maximize"] else grad
        # Not lerp_: its difference of large numbers overflows.
        exp_avg.mul_(first).add_(slope, alpha=1 - first)
        exp_avg_sq.mul_(second).addcmul_(slope, slope, value=1 - second)
        exp_avg_sq.clamp_(max=torch.finfo(exp_avg_sq.dtype).max)
        update = exp_avg_sq.sqrt().mul_(factor).add_(term)
        torch.div(exp_avg, update, out=update)
        if group["weight_decay"] != 0:
            update.add_(param, alpha=group["weight_decay"])
        (rate,) = _rates([_norm(param)], [_norm(update)], group["lr"], update.dtype)
        param.sub_(update.mul_(rate))


def _update_together(operands: list[_Operands], group: dict[str, Any]) -> None:
    first, second = group["betas"]
    params, grads, exp_avgs, exp_avg_sqs, factors, terms, _ = (
        list(column) for column in zip(*operands, strict=True)
    )
    slopes = torch._foreach_neg(grads) if group["maximize"] else grads
    torch._foreach_mul_(exp_avgs, first)
    torch._foreach_add_(exp_avgs, slopes, alpha=1 - first)
    torch._foreach_mul_(exp_avg_sqs, second)
    torch._foreach_addcmul_(exp_avg_sqs, slopes, slopes, value=1 - second)
    torch._foreach_clamp_max_(exp_avg_sqs, torch.finfo(exp_avg_sqs[0].dtype).max)
    shares = torch._foreach_sqrt(exp_avg_sqs)
    torch._foreach_mul_(shares, factors)
    torch._foreach_add_(shares, terms)
    updates = torch._foreach_div(exp_avgs, shares)
    if group["weight_decay"] != 0:
        torch._foreach_add_(updates, params, alpha=group["weight_decay"])
    lengths, norms = (list(map(_norm, tensors)) for tensors in (params, updates))
    torch._foreach_mul_(updates, _rates(lengths, norms, group["lr"], updates[0].dtype))
    torch._foreach_sub_(params, updates)


def _norm(tensor: Tensor) -> Tensor:
    """Return the Euclidean norm in float64, which can hold the squares of every smaller dtype."""
    if tensor.dtype is not torch.float64:
        norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
        return norm
    if tensor.numel() == 0:
        return tensor.new_zeros(())
    largest = tensor.abs().amax()
    scale = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    norm = torch.linalg.vector_norm(tensor / scale)
    return norm * scale


def _rates(
    params: list[Tensor], updates: list[Tensor], lr: float | Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """Return lr |x| / |u| of each pair of norms, at most the largest number of `dtype`."""
    lengths, norms = torch.stack(params), torch.stack(updates)
    # Compare with 0, so that NaN stays NaN.
    ratios = torch.where((lengths == 0) | (norms == 0), torch.ones_like(norms), lengths / norms)
    return list((ratios * float(lr)).clamp(max=torch.finfo(dtype).max).unbind())
