"""Products of bfloat16 and float16 by the kernels of float32, between conversions.

Operands become float32, which holds them exactly. Sums are in float32, and results are rounded
once. Processors without instructions for these types emulate them: on a Zen 3, 512 x 768 by
768 x 768 took PyTorch 7.4 milliseconds in float32. In bfloat16 it took 35 to 495 for the three
products of a training step, and 7.6 between conversions (one thread).
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from bestof.torch.ops.dtypes import BFLOAT16, FLOAT16
from bestof.torch.ops.product.problem import ProductProblem
from bestof.torch.ops.product.pytorch_product import PyTorchProduct
from bestof.torch.ops.row import Row


def in_float32(name: str, inner: Row[ProductProblem]) -> Row[ProductProblem]:
    """Return the row that computes other types by a row of float32."""

    def product(
        originals: PyTorchProduct,
        problem: ProductProblem,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
    ) -> Tensor:
        wide = None if bias is None else bias.float()
        result: Tensor = inner.function(originals, _widened(problem), wide, a.float(), b.float())
        return result.to(a.dtype)

    bound, scratch = inner.bound, inner.scratch
    return replace(
        inner,
        name=name,
        function=product,
        supports=lambda problem: inner.supports(_widened(problem)),
        promising=lambda problem: inner.promising(_widened(problem)),
        dtypes=(BFLOAT16, FLOAT16),
        bound=None if bound is None else lambda problem: bound(_widened(problem)),
        accuracy="float32",
        compiled=None,
        scratch=None if scratch is None else lambda problem: scratch(_widened(problem)),
    )


def _widened(problem: ProductProblem) -> ProductProblem:
    return problem._replace(dtype="float32")
