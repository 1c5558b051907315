"""Decides which alternatives of a whole layer are worth a trial."""

from __future__ import annotations

from bestof.accuracy import allows
from bestof.torch.ops.convolution import estimate, shared_im2row
from bestof.torch.ops.convolution.lowered import matrix_bytes
from bestof.torch.ops.convolution.passes import FORWARD, PASSES, WEIGHT_GRADIENT
from bestof.torch.ops.convolution.problem import LayerProblem
from bestof.torch.ops.dtypes import is_rounded
from bestof.torch.ops.memory_bound import refusal

# A lowered matrix is R S times as large as the input, and is kept for every layer of a step.
_KEPT_BYTES = 256 * 2**20


def computes_jointly(layer: object) -> bool:
    """Return whether PyTorch's own kernels should be judged for the whole layer.

    They should if both gradients are needed and the passes can gain little one by one. Then it
    matters that a single call computes both gradients. This holds for bfloat16 and float16, whose
    arithmetic takes little time where the processor has it: in bfloat16, passes that each won 3 to
    8 % made training of ResNet18 5 % slower as a whole. It also holds for float32 layers in which
    no pass is estimated to be far ahead of PyTorch's own kernel. Examples are the layers of
    ResNet34 on 64x64 images, where winners of single passes made training 8 % slower.
    """
    assert isinstance(layer, LayerProblem)
    problem = layer.convolution
    if problem.device or not (layer.input and layer.weight):
        return False
    if is_rounded(problem.dtype):
        return True
    as_is = sum(one.as_is(problem) for one in PASSES)
    cheapest = sum(one.cheapest(problem) for one in PASSES)
    return as_is <= estimate.JOINT_MARGIN * cheapest


def too_large(layer: object) -> str | None:
    """Return why the lowered matrix of a layer cannot be kept; None if it can."""
    assert isinstance(layer, LayerProblem)
    return None if layer.convolution.device else refusal(matrix_bytes(layer.convolution))


def shares_im2row(layer: object) -> bool:
    """Return whether keeping the lowered matrix for the backward pass may win."""
    assert isinstance(layer, LayerProblem)
    problem = layer.convolution
    if (
        problem.device
        or not layer.weight
        or not allows(problem.accuracy, "float32")
        or matrix_bytes(problem) > _KEPT_BYTES
        or not shared_im2row.supports(problem)
    ):
        return False
    apart = FORWARD.cheapest(problem) + WEIGHT_GRADIENT.cheapest(problem)
    limit = max(estimate.SHARING_MARGIN * apart, 2 * estimate.SMALL)
    return shared_im2row.estimate(problem) <= limit
