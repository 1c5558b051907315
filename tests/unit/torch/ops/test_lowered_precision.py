"""Programs that let PyTorch round the operands of float32 products: both results are right."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import bestof.torch as bt
from bestof.selection import use_policy
from bestof.selection.state.journal import DisqualificationEntry
from bestof.torch.dispatch.overrides import operation_overrides
from bestof.torch.ops.attention.forward import AttentionForward
from bestof.torch.ops.convolution.conv2d import Conv2d
from bestof.torch.ops.product.product import Product
from bestof.torch.ops.pytorch_kernel import kernels_of

_matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # has no annotations
_conv: Any = torch.backends.mkldnn.conv  # type: ignore[attr-defined]

GEOMETRY = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
A, B, X, W, Q, K, V = (
    torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    for seed, shape in enumerate(
        [(256, 256)] * 2 + [(1, 32, 16, 16), (32, 32, 3, 3)] + [(1, 2, 64, 32)] * 3
    )
)
CASES: dict[str, tuple[Any, str, tuple[Any, ...]]] = {
    "attention": (AttentionForward, "native", (Q, K, V, 0.0, False, None, None)),
    "product": (Product, "native blocked", (0, None, A, B)),
    "convolution": (Conv2d, "native convgemm", (X, W, None, *GEOMETRY)),
}


@pytest.fixture(autouse=True)
def precision_of_the_program() -> Iterator[None]:
    before = _matmul.fp32_precision, _conv.fp32_precision
    yield
    _matmul.fp32_precision, _conv.fp32_precision = before
    bt.disable()


def rounded(one: Any) -> Any:
    return one.bfloat16().float() if isinstance(one, Tensor) else one


def set_precision() -> None:
    _matmul.fp32_precision = _conv.fp32_precision = "bf16"


def set_environment() -> None:
    os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] = "BF16"


@pytest.mark.parametrize("allow", [set_precision, set_environment])
@pytest.mark.parametrize("name", CASES)
def test_a_result_of_rounded_operands_is_wrong_unless_the_program_allows_it(
    name: str, allow: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    made, row, arguments = CASES[name]
    operation = made()
    call = operation.call("float32", *arguments)
    own = operation.rows[0].function
    original = operation.original(kernels_of(operation.operators))
    right = own(original, call.problem, *call.operands)
    by_pytorch = own(original, call.problem, *map(rounded, call.operands))
    compared = operation.row(row), original, (call.problem, *call.operands), by_pytorch, right
    assert operation.compare(*compared).reference_wrong is not None
    allow()
    found = operation.compare(*compared)
    assert (found.wrong, found.reference_wrong) == (None, None)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("attention", "as is"),
        ("attention", "native"),
        ("product", "as is"),
        ("product", "native blocked"),
        ("product", "onednn"),
        ("convolution", "as is"),
        ("convolution", "native convgemm"),
        ("convolution", "im2row"),
    ],
)
def test_no_row_is_taken_out(name: str, row: str, precision: str) -> None:
    """PyTorch rounds where the processor has such products."""
    _matmul.fp32_precision = _conv.fp32_precision = precision
    use_policy(f"fixed:{row}")
    bt.enable()
    w = W.clone().requires_grad_()
    for _ in range(3):
        if name == "product":
            A.mm(B)
        elif name == "attention":
            functional.scaled_dot_product_attention(*(one.repeat(8, 4, 4, 1) for one in (Q, K, V)))
        else:
            torch.conv2d(X, w, padding=1).sum().backward()
    entries = [one for of in operation_overrides() for one in of.selector.journal.entries()]
    assert [one for one in entries if isinstance(one, DisqualificationEntry)] == []
