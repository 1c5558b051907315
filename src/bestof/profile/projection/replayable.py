"""Checks that a call from a profile may be replayed. A profile is a file, and names operators."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from bestof.errors import ProfileError
from bestof.torch.plan.file.operators import computes
from bestof.torch.plan.file.values import memory_limit
from bestof.torch.plan.run.unchecked_operands import UNCHECKED

_NAME = re.compile(r"aten::([a-z0-9_]+)")
_LARGEST = 2**63

# What training runs beside the operators of a plan, and their forms that end in an underscore.
# None of them uses files or texts.
_TRAINING_TEXT = """
    _adaptive_avg_pool2d_backward _cdist_backward _cdist_forward _embedding_bag_backward
    _embedding_bag_dense_backward _fft_c2c _fft_c2r _fft_r2c _foreach_abs _foreach_add
    _foreach_addcdiv _foreach_addcmul _foreach_div _foreach_lerp _foreach_maximum _foreach_mul
    _foreach_neg _foreach_norm _foreach_pow _foreach_reciprocal _foreach_sign _foreach_sqrt
    _foreach_sub _foreach_zero _fused_adagrad _fused_adam _fused_adamw _fused_sgd
    _local_scalar_dense _log_softmax_backward_data _prelu_kernel_backward
    _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _softmax_backward_data
    avg_pool2d_backward bernoulli binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits binary_cross_entropy_with_logits_backward
    convolution_backward cross_entropy_loss elu_backward embedding_backward
    embedding_dense_backward exponential gelu_backward glu_backward grid_sampler_2d_backward
    hardsigmoid_backward hardswish_backward hardtanh_backward huber_loss huber_loss_backward item
    kl_div l1_loss leaky_relu_backward linear_backward log_sigmoid_backward
    log_sigmoid_forward logit_backward masked_select max_pool2d_with_indices_backward mish_backward
    mse_loss mse_loss_backward native_batch_norm native_batch_norm_backward native_dropout
    native_dropout_backward native_group_norm_backward native_layer_norm_backward nll_loss
    nll_loss2d nll_loss2d_backward nll_loss2d_forward nll_loss_backward nll_loss_forward
    nll_loss_nd nonzero normal rand rand_like randint randn randn_like randperm random
    reflection_pad2d_backward replication_pad2d_backward resize select_backward sigmoid_backward
    silu_backward slice_backward smooth_l1_loss smooth_l1_loss_backward softplus_backward
    tanh_backward threshold_backward unfold_backward uniform upsample_bicubic2d_backward
    upsample_bilinear2d_backward upsample_nearest2d_backward value_selecting_reduction_backward
    zero
"""
_TRAINING = frozenset(_TRAINING_TEXT.split())

_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
# The kernels of these read weights without a check.
_UNCHECKED = UNCHECKED - {_ATTENTION}


def check_name(name: object) -> None:
    """Raise ProfileError for an operator that no replay calls."""
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    packet = "" if found is None else found[1]
    bases = {packet, packet.removesuffix("_")}
    known = any(computes(one) or one in _TRAINING for one in bases)
    if not known or bases & _UNCHECKED:
        raise ProfileError(
            f"{str(name)[:80]!a} is not replayed: replays call only PyTorch's operators that "
            "compute (profile/projection/replayable.py)"
        )


def check_sizes(shape: Any, strides: Any, itemsize: int) -> int:
    """Return the bytes of a tensor; ValueError for a shape or strides that no tensor has."""
    if any(type(one) is not int or one < 0 for one in (*shape, *strides)):
        raise ValueError("extents and strides must be whole numbers from 0 on")
    reach = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    size: int = itemsize * (max(prod(shape), reach + 1) if all(shape) else 0)
    if size > memory_limit():
        raise ValueError("a tensor takes more memory than this machine has left")
    return size


def check_value(value: Any) -> None:
    """Raise ValueError for an argument that is neither a number nor a list of numbers."""
    values = value if isinstance(value, list) else [value]
    for one in values:
        if one is None or one == "":
            continue
        if not isinstance(one, bool | int | float) or (
            isinstance(one, int) and not -_LARGEST <= one < _LARGEST
        ):
            raise ValueError(f"{str(one)[:40]!a} is no argument of a recorded call")


def check_operands(name: str, given: dict[str, Any]) -> None:
    """Raise ValueError if operands disagree of which a kernel of PyTorch checks nothing.

    given: the arguments by their names in the schema.
    """
    base = name.removeprefix("aten::")
    for wanted in (given.get("size"), given.get("output_size")):
        if isinstance(wanted, list) and 8 * abs(prod(wanted)) > memory_limit():
            raise ValueError("a result takes more memory than this machine has left")
    if base.startswith("_fused_"):
        lists = [one for one in given.values() if _is_list(one) and len(one) > 0]
        if any(not _alike(lists[0], one) for one in lists[1:]):
            raise ValueError("lists of parameters of different shapes")
    gradient: Any = given.get("grad_out", given.get("grad_output"))
    x = given.get("input")
    x = given.get("self") if x is None else x
    if base.startswith(_ATTENTION):
        _check_attention(given)
    if not isinstance(x, Tensor):
        return
    if base.endswith("_backward") and not isinstance(gradient, Tensor):
        gradient = x
    if "norm_backward" in base and gradient.shape != x.shape:
        raise ValueError("a gradient of another shape than the result")
    if "batch_norm" in base and x.dim() > 1:
        rows = [one for one in given.values() if isinstance(one, Tensor) and one.dim() == 1]
        if any(len(one) != x.shape[1] for one in rows):
            raise ValueError("statistics of another number of channels")
    if base == "native_layer_norm_backward":
        rows_ = x.numel() // max(prod(given["normalized_shape"]), 1)
        if any(given[one].numel() != rows_ for one in ("mean", "rstd")):
            raise ValueError("statistics of another number of rows")
    if base == "_adaptive_avg_pool2d_backward" and gradient.shape[:-2] != x.shape[:-2]:
        raise ValueError("a gradient of other planes")


def _check_attention(given: dict[str, Any]) -> None:
    query, key, value = (given[name] for name in ("query", "key", "value"))
    right = key.shape == value.shape and query.dim() == key.dim() == 4
    right = right and query.shape[:2] == key.shape[:2] and query.shape[3] == key.shape[3]
    for name in ("grad_out", "out"):
        right = right and (name not in given or given[name].shape == query.shape)
    if right and "logsumexp" in given:
        right = given["logsumexp"].numel() * query.shape[3] == query.numel()
    if not right:
        raise ValueError("queries, keys and values of shapes that disagree")


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, Tensor) for one in value)


def _alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Return whether lists have the same shapes, or one holds the count of steps of each."""
    shapes = [one.shape for one in other]
    counts = all(shape == torch.Size([]) for shape in shapes)
    return len(one) == len(other) and (counts or shapes == [one.shape for one in one])
