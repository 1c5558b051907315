"""The operators that a plan file may name."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch

from bestof.errors import TorchError
from bestof.torch.plan.trace.graph import fused
from bestof.torch.plan.trace.updates import WRITING

_FUNCTIONS: dict[str, Any] = {"bestof.fused": fused, "operator.getitem": operator.getitem}
_NAMES = {target: name for name, target in _FUNCTIONS.items()}

# What inference computes: a value from others, by PyTorch's own code. Left out are operators that
# read or write files, print, keep state (generators of random numbers, the mode of gradients), or
# take indices or sizes without a check; and what only training needs.
_COMPUTING_TEXT = """
    abs absolute acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d add addbmm addcdiv addcmul addmm
    addmv addr adjoint affine_grid_generator alias alias_copy all alpha_dropout amax amin
    aminmax angle any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin
    argsort as_strided as_strided_copy asin asinh atan atan2 atanh atleast_1d atleast_2d
    atleast_3d avg_pool1d avg_pool2d avg_pool3d baddbmm bartlett_window batch_norm bilinear
    bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
    blackman_window block_diag bmm broadcast_tensors broadcast_to bucketize cartesian_prod cat
    cdist ceil celu channel_shuffle chunk clamp clamp_max clamp_min clip clone col2im
    column_stack complex concat concatenate conj conj_physical constant_pad_nd contiguous conv1d
    conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution copy
    copysign cos cosh cosine_similarity count_nonzero cross cummax cummin cumprod cumsum
    cumulative_trapezoid deg2rad det detach detach_copy diag diag_embed diagflat diagonal
    diagonal_copy diff digamma dist div divide dot dropout dsplit dstack einsum elu embedding
    embedding_bag empty empty_like empty_strided eq erf erfc erfinv exp exp2 expand expand_as
    expand_copy expm1 eye feature_alpha_dropout feature_dropout fft_fft fft_fft2 fft_fftfreq
    fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn
    fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft
    fft_rfft2 fft_rfftfreq fft_rfftn fill flatten flip fliplr flipud float_power floor
    floor_divide fmax fmin fmod frac frexp frobenius_norm full full_like gather ge gelu ger glu
    greater greater_equal grid_sampler grid_sampler_2d grid_sampler_3d group_norm gru gru_cell
    gt hamming_window hann_window hardshrink hardsigmoid hardswish hardtanh hsplit hstack hypot
    i0 im2col imag index index_add index_copy index_fill index_put index_reduce index_select
    inner instance_norm inverse isclose isfinite isin isinf isnan isneginf isposinf isreal istft
    kaiser_window kron kthvalue layer_norm ldexp le leaky_relu lerp less less_equal lgamma
    lift_fresh lift_fresh_copy linalg_cholesky linalg_cholesky_ex linalg_cross linalg_det
    linalg_diagonal linalg_eigh linalg_eigvalsh linalg_inv linalg_inv_ex linalg_matmul
    linalg_matrix_exp linalg_matrix_norm linalg_matrix_rank linalg_multi_dot linalg_norm
    linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex linalg_solve_triangular
    linalg_svd linalg_svdvals linalg_vecdot linalg_vector_norm linear linspace log log10 log1p
    log2 log_sigmoid log_softmax logaddexp logaddexp2 logcumsumexp logdet logical_and
    logical_not logical_or logical_xor logit logspace logsumexp lstm lstm_cell lt masked_fill
    masked_scatter matmul matrix_exp max max_pool1d max_pool1d_with_indices max_pool2d
    max_pool2d_with_indices max_pool3d max_pool3d_with_indices maximum mean median meshgrid min
    minimum mish mm moveaxis movedim msort mul multiply mv nan_to_num nanmean nanmedian nansum
    narrow narrow_copy native_group_norm native_layer_norm ne neg negative new_empty
    new_empty_strided new_full new_ones new_zeros nextafter norm not_equal nuclear_norm one_hot
    ones ones_like outer pad pad_sequence pairwise_distance permute permute_copy pinverse
    pixel_shuffle pixel_unshuffle polar positive pow prelu prod quantile rad2deg ravel real
    reciprocal reflection_pad1d reflection_pad2d reflection_pad3d relu relu6 remainder repeat
    repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape reshape_as
    resolve_conj resolve_neg rms_norm rnn_relu rnn_tanh rnn_tanh_cell roll rot90 round row_stack
    rsqrt rsub scalar_tensor scaled_dot_product_attention scatter scatter_add scatter_reduce
    searchsorted select select_copy select_scatter selu sgn sigmoid sign signbit silu sin sinc
    sinh slice slice_copy slice_scatter slogdet softmax softplus softshrink sort special_digamma
    special_entr special_erf special_erfc special_erfcx special_erfinv special_exp2
    special_expit special_expm1 special_gammaln special_i0 special_i0e special_i1 special_i1e
    special_log1p special_log_ndtr special_log_softmax special_logit special_logsumexp
    special_ndtr special_ndtri special_psi special_round special_sinc special_softmax
    special_xlog1py special_xlogy split split_copy split_with_sizes split_with_sizes_copy sqrt
    square squeeze squeeze_copy stack std std_mean stft sub subtract sum swapaxes swapdims t
    t_copy take take_along_dim tan tanh tensor_split tensordot threshold tile to topk trace
    transpose transpose_copy trapezoid trapz tril tril_indices triu triu_indices true_divide
    trunc type_as unbind unbind_copy unflatten unfold unfold_copy unsafe_chunk unsafe_split
    unsafe_split_with_sizes unsqueeze unsqueeze_copy upsample_bicubic2d upsample_bilinear2d
    upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d var var_mean vdot view view_as view_as_complex view_as_complex_copy
    view_as_real view_as_real_copy view_copy vsplit vstack where xlogy zero zeros zeros_like
    _adaptive_avg_pool2d _adaptive_avg_pool3d _aminmax _assert_tensor_metadata _cdist_forward
    _conj _conj_copy _euclidean_dist log_sigmoid_forward
    _conj_physical _convolution _fused_rms_norm _log_softmax
    _native_batch_norm_legit_no_training _neg_view _neg_view_copy _prelu_kernel _reshape_copy
    _native_multi_head_attention _safe_softmax _scaled_dot_product_attention_math
    _scaled_dot_product_flash_attention_for_cpu
    _softmax _stack _to_copy _transformer_encoder_layer_fwd _unsafe_view
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm _weight_norm_interface
    mH mT matrix_H mkldnn_rnn_layer numpy_T
"""
_COMPUTING = frozenset(_COMPUTING_TEXT.split())

_NAME = re.compile(r"aten\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")


def name_of(target: Any) -> str:
    """Return the name of an operator or function in a file. TorchError for those without a name."""
    if isinstance(target, torch._ops.OpOverload) and _may_be_named(target):
        return str(target)
    if target not in _NAMES:
        raise TorchError(
            f"save: the plan calls {target!r}, which a file cannot name: it may name PyTorch's own "
            "operators that only compute (torch/plan/file/operators.py)"
        )
    return _NAMES[target]


def target_of(name: Any) -> Any:
    """Return the operator or function of a name in a file; ValueError for any other code."""
    if not isinstance(name, str):
        raise ValueError("an operator's name must be a text")
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    found = _NAME.fullmatch(name)
    if found is not None:
        packet = getattr(torch.ops.aten, found[1], None)
        target = getattr(packet, found[2], None)
        if isinstance(target, torch._ops.OpOverload) and _may_be_named(target):
            return target
    raise ValueError(f"{name!a} is no operator that a plan may hold")


def computes(packet: str) -> bool:
    """Return whether an operator of PyTorch only computes, by its name without `aten`."""
    return packet in _COMPUTING


def _may_be_named(target: torch._ops.OpOverload) -> bool:
    """Return whether an operator only computes, or is one of the few that write to an input."""
    if target in WRITING:
        return True
    return (
        target.namespace == "aten"
        and target._schema.name.removeprefix("aten::") in _COMPUTING
        and not target._schema.is_mutable
    )
