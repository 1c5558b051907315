"""Which algorithm runs a fused convolution: one selector for all plans of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch

from bestof.kernels import conv2d_algorithms, isa
from bestof.selection import Alternative, BestOf, Race, shared_policy
from bestof.torch.accuracy import DEFAULT_ACCURACY, Accuracy, allows
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.convolution.table import NATIVE
from bestof.torch.depends import DEPENDS

# Weights are packed once here, so the native im2row's own copy is worth trying beside the table of the passes.
_NATIVE: dict[str, Accuracy] = {
    "im2row": DEFAULT_ACCURACY,
    "matvec": DEFAULT_ACCURACY,
    "matvec_bf16": "relaxed",
    "convgemm_bf16": "relaxed",
    **{row.name: row.accuracy for row in NATIVE},
}
# What a linear layer is offered: the other kernels of one pixel do the same work under other names.
_PACKING = frozenset({"convgemm", "convgemm_bf16"})
_LINEAR = _PACKING | {"matvec", "matvec_bf16"}
PYTORCH = "pytorch"
ONEDNN = "onednn"

# A native algorithm that reads weights as they are, and transforms them at each call: less memory, more time. No race
# tries it, for it never wins one; it is taken where memory is limited.
UNPACKED = " unpacked"

# The layers of a plan race at once, in the running plan: a further round is a call of the whole model for each
# alternative, and a user waits. Near-ties are not worth more of them.
_POLICY = Race(max_trials=12)


# Where its own packing or blocking makes the difference they win, by a few percent; not where multiplications do.
_LIKE_CONVGEMM = frozenset({"direct", "im2row"})

# More than most caches beyond the second level hold for one core.
_LARGE_BYTES = 16 * 2**20
# Instruction sets without products of bfloat16 give the same results, slower than float32.
_PAIRS = "convgemm_bf16"
_FAST_PAIRS = "avx512_bf16"


class FusedProblem(NamedTuple):
    """A convolution with its epilogue, as selection tells them apart. A linear layer is one of one pixel a row."""

    convolution: ConvProblem
    residual: bool
    activation: str
    accuracy: Accuracy
    linear: bool
    pooled: bool = False  # the largest of each 2x2 results

    def canonical(self) -> str:
        """Canonical text, for the store: all that tells two problems apart."""
        return f"{self} {self.accuracy} threads={self.convolution.threads}"

    def __str__(self) -> str:
        words = [self.convolution.notation]
        words += [
            word
            for word, here in (("linear", self.linear), ("bias", self.convolution.bias))
            if here
        ]
        words += [word for word in ("residual" if self.residual else "", self.activation) if word]
        words += ["max 2x2"] if self.pooled else []
        return " ".join(words)


@cache
def selector() -> BestOf:
    """The selector of fused convolutions; it is called with a step, and asks it to run by an algorithm."""
    names = (ONEDNN, PYTORCH, *_NATIVE)
    policy = shared_policy() or _POLICY
    return BestOf(
        "fused convolution",
        [Alternative(name, _by(name), DEPENDS, supports=_supports(name)) for name in names],
        lambda step: step.problem,
        policy=policy,
        neighbours=_other_batches if isinstance(policy, Race) else None,
    )


def _other_batches(problem: FusedProblem) -> Iterator[FusedProblem]:
    """The same layer for other numbers of images, or rows where it is linear, the nearest by their ratio first."""
    images, channels, height, width = problem.convolution.input_shape
    size = width if problem.linear else images
    for other in sorted(_SIZES, key=lambda one: max(one / size, size / one)):
        if other != size:
            shape = (
                (images, channels, height, other)
                if problem.linear
                else (other, channels, height, width)
            )
            yield problem._replace(convolution=problem.convolution._replace(input_shape=shape))


# Batches that somebody may have used before.
_SIZES = (
    *range(1, 33),
    40,
    48,
    56,
    64,
    80,
    96,
    100,
    112,
    128,
    160,
    192,
    200,
    224,
    256,
    384,
    512,
    768,
    1024,
)


def _by(name: str) -> Callable[[Any], None]:
    def run(step: Any) -> None:
        step.runner(name)()

    return run


def applicable(problem: FusedProblem) -> list[str]:
    """The algorithms that race for a problem, in the order of the selector."""
    return [name for name in (ONEDNN, PYTORCH, *_NATIVE) if _supports(name)(problem)]


def _supports(name: str) -> Callable[[Any], bool]:
    def answer(problem: FusedProblem) -> bool:
        onednn = torch.backends.mkldnn.is_available() and not problem.linear  # type: ignore[no-untyped-call]
        if name == ONEDNN:
            return bool(onednn)
        if name == PYTORCH:
            return not onednn
        if not is_allowed(problem, name):
            return False
        if problem.linear and (
            name not in _LINEAR or (name in _PACKING and _only_streams(problem.convolution))
        ):
            return False
        offered = algorithms(problem.convolution)
        if name == _PAIRS and (isa() != _FAST_PAIRS or "depthwise" in offered):
            return False
        return name in offered and not (
            name in _LIKE_CONVGEMM and _winograd_wins(problem.convolution, offered)
        )

    return answer


def _winograd_wins(problem: ConvProblem, offered: Any) -> bool:
    """Whether Winograd saves so much that of the algorithms that multiply everything one is enough to try.

    F(4) with a third of the operations has won every layer of VGG16 and ResNet34 from 32 channels on, by 1.5 and more.
    """
    filters, channels = problem.weight_shape[:2]
    winograd = offered.get("winograd4")
    return (
        winograd is not None
        and min(filters, channels) >= 32
        and 2.5 * winograd.flops < offered["convgemm"].flops
    )


def _only_streams(problem: ConvProblem) -> bool:
    """Whether a linear layer reads large weights for so few rows that memory sets the pace.

    Measured on 25088 to 4096 features, for 1 and 2 rows: 11.8 and 12.0 ms by matvec, 12.0 and 11.9 by convgemm, which
    would keep the 411 MB a second time; 5.8 and 6.1 by matvec_bf16, 5.9 and 5.9 by convgemm_bf16, which rounds the rows
    as well. For 8 rows they are 16.5, 12.1, 9.8 and 5.9. PyTorch takes 18.5, 38.1 and 38.8.
    """
    rows = problem.input_shape[0] * problem.input_shape[3]
    return rows <= 2 and 4 * problem.weight_shape[0] * problem.weight_shape[1] > _LARGE_BYTES


def native_name(algorithm: str) -> str:
    """The native algorithm, whether it packs weights or not."""
    return algorithm.removesuffix(UNPACKED)


def is_allowed(problem: FusedProblem, algorithm: str) -> bool:
    """Whether the accuracy of a problem allows a native algorithm."""
    needed = _NATIVE.get(native_name(algorithm))
    return needed is not None and allows(problem.accuracy, needed)


def promised_error(problem: FusedProblem, algorithm: str | None) -> float:
    """The promised rms error over the rms of the result; where it is not chosen yet, that of any that may be."""
    offered = algorithms(problem.convolution)
    if algorithm is not None:
        return float(offered[native_name(algorithm)].error_bound)
    return float(
        max(
            (row.error_bound for name, row in offered.items() if is_allowed(problem, name)),
            default=0.0,
        )
    )


def packs(problem: ConvProblem, algorithm: str) -> bool:
    """Whether a native algorithm keeps weights in a layout of its own; the others read the model's memory."""
    return not algorithm.endswith(UNPACKED) and bool(algorithms(problem)[algorithm].packs)


def pools(problem: FusedProblem, algorithm: str) -> bool:
    """Whether an algorithm pools what it computes; behind others a pooling follows."""
    row = algorithms(problem.convolution).get(native_name(algorithm))
    return problem.pooled and row is not None and row.pools


def algorithms(problem: ConvProblem) -> Any:
    """What kernels offer for a problem: name -> promised error, scratch, operations, whether weights are packed, and
    whether results may be pooled."""
    (n, c, h, w), (k, i, r, s) = problem.input_shape, problem.weight_shape
    return conv2d_algorithms(
        (n, h, w, c),
        (k, r, s, i),
        stride=problem.stride,
        padding=problem.padding,
        dilation=problem.dilation,
        groups=problem.groups,
    )
