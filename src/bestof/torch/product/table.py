"""The table of alternatives for matrix products; the first row is PyTorch's own kernel."""

from __future__ import annotations

from torch import Tensor

from bestof.accuracy import allows
from bestof.torch.convolution.alternative import BFLOAT16_INSIDE
from bestof.torch.product import bfloat16, native, onednn
from bestof.torch.product.originals import Originals
from bestof.torch.product.problem import ProductProblem
from bestof.torch.product.row import Row

AS_IS = "as is"


def _as_is(
    originals: Originals, problem: ProductProblem, bias: Tensor | None, a: Tensor, b: Tensor
) -> Tensor:
    return originals(problem.operation, bias, a, b)


ROWS = (
    Row(AS_IS, _as_is, lambda _: True, accuracy="exact"),
    Row("onednn", onednn.product, onednn.supports, compiled=onednn.compiled, shapes=onednn.SHAPES),
    Row("bfloat16", bfloat16.product, bfloat16.supports, lambda _: BFLOAT16_INSIDE, "relaxed"),
    *native.rows(),
)


def applies(row: Row, problem: ProductProblem) -> bool:
    """Return whether a row supports a problem at its level of accuracy."""
    return allows(problem.accuracy, row.accuracy) and row.supports(problem)
