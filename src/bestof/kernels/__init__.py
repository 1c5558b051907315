"""Native CPU kernels: arrays in, arrays out. They take NumPy arrays or anything with DLPack."""

from __future__ import annotations

from bestof.kernels._native import PackedMatrix, PackedWeights
from bestof.kernels.activation import ActivationPlan
from bestof.kernels.algorithms import Algorithm, ErrorBound, Promise, algorithms
from bestof.kernels.attention import AttentionPlan, attention
from bestof.kernels.attention_backward import AttentionBackwardPlan, attention_backward
from bestof.kernels.bernoulli import BernoulliPlan
from bestof.kernels.build import build
from bestof.kernels.channels import ChannelPlan
from bestof.kernels.conv import (
    Conv2dPlan,
    conv2d,
    conv2d_algorithms,
    conv2d_backward_input,
    conv2d_backward_weight,
    pack_weights,
)
from bestof.kernels.excitation import ExcitationPlan
from bestof.kernels.focal_loss import FocalLoss, focal_loss
from bestof.kernels.frozen_norm import frozen_norm, frozen_norm_backward
from bestof.kernels.group_norm import GroupNormPlan
from bestof.kernels.inverted_residual import InvertedResidualPlan
from bestof.kernels.isa import has_wide_vectors, isa, isas, use_isa
from bestof.kernels.lamb import lamb_step
from bestof.kernels.layer_norm import LayerNormPlan
from bestof.kernels.matmul import (
    MatmulAlgorithm,
    MatmulPlan,
    MatmulPromise,
    matmul,
    matmul_algorithms,
    pack_matrix,
)
from bestof.kernels.norm import NormPlan, layer_norm, rms_norm
from bestof.kernels.peak import multiply_adds
from bestof.kernels.pool import Pool2dPlan, pool2d, pool2d_backward
from bestof.kernels.rotary import RotaryPlan, rotary
from bestof.kernels.softmax import SoftmaxPlan
from bestof.kernels.steps import run_steps
from bestof.kernels.transpose import transpose, transpose_algorithms

__all__ = [
    "ActivationPlan",
    "Algorithm",
    "AttentionBackwardPlan",
    "AttentionPlan",
    "BernoulliPlan",
    "ChannelPlan",
    "Conv2dPlan",
    "ErrorBound",
    "ExcitationPlan",
    "FocalLoss",
    "GroupNormPlan",
    "InvertedResidualPlan",
    "LayerNormPlan",
    "MatmulAlgorithm",
    "MatmulPlan",
    "MatmulPromise",
    "NormPlan",
    "PackedMatrix",
    "PackedWeights",
    "Pool2dPlan",
    "Promise",
    "RotaryPlan",
    "SoftmaxPlan",
    "algorithms",
    "attention",
    "attention_backward",
    "build",
    "conv2d",
    "conv2d_algorithms",
    "conv2d_backward_input",
    "conv2d_backward_weight",
    "focal_loss",
    "frozen_norm",
    "frozen_norm_backward",
    "has_wide_vectors",
    "isa",
    "isas",
    "lamb_step",
    "layer_norm",
    "matmul",
    "matmul_algorithms",
    "multiply_adds",
    "pack_matrix",
    "pack_weights",
    "pool2d",
    "pool2d_backward",
    "rms_norm",
    "rotary",
    "run_steps",
    "transpose",
    "transpose_algorithms",
    "use_isa",
]
