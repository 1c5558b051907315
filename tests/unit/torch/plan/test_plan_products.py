"""The native products, as algorithms for linear layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bestof.kernels import matmul_algorithms
from bestof.torch.plan.algorithms.algorithm import PlacedLayer
from bestof.torch.plan.algorithms.product import Product, products
from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Norm
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.layers.problem import problem_of

INS, OUTS = 65, 49
ROUNDED = 2.0**-9  # half a unit in the last place of bfloat16


@pytest.mark.parametrize("row", products(), ids=lambda row: row.name)
@pytest.mark.parametrize("rows", [1, 9, 33])
@pytest.mark.parametrize(("transposed", "added"), [(False, False), (True, True)])
def test_a_product_computes_a_layer_with_all_that_follows(
    row: Product, rows: int, transposed: bool, added: bool
) -> None:
    rounds = row.rounds == "both"
    dtype = torch.bfloat16 if rounds else torch.float32
    torch.manual_seed(rows)
    weight, bias, x, more = (
        torch.randn(shape).to(dtype) for shape in ((OUTS, INS), (OUTS,), (rows, INS), (rows, OUTS))
    )
    held = weight.t().contiguous() if transposed else weight
    weights = FrozenWeights(held, bias, None, 1, transposed)
    layer = Layer(weights, linear=True, activation="relu" if added else "")
    problem = problem_of(layer, "float32", (rows, INS), added)
    assert row.can_run(problem)
    out = torch.full((rows, OUTS), float("nan"), dtype=dtype)
    row.bind(PlacedLayer(layer, problem, x, out, more if added else None, out)).run()
    sums = F.linear(x.double(), weight.double(), bias.double())
    expected = (sums + more.double()).relu() if added else sums
    error = (out.double() - expected).abs().max() / expected.square().mean().sqrt()
    # The promise of the sums holds for the rms; the largest of 1,617 is less than ten times that.
    # A result of bfloat16 is rounded by its own size, at most six times the rms.
    assert error <= 10 * 1e-6 + (6 * ROUNDED if rounds else 0.0)


def test_a_product_leaves_exact_layers_and_other_types_alone() -> None:
    weights = FrozenWeights(torch.randn(OUTS, INS), None, None, 1)
    layer = Layer(weights, linear=True)
    names = {
        accuracy: [
            row.name
            for row in products()
            if row.supports(problem_of(layer, accuracy, (9, INS), False))
        ]
        for accuracy in ("exact", "float32", "relaxed")
    }
    emulated = matmul_algorithms((1, 1), (1, 1))["blocked_bf16"].algorithm.emulated
    rounding = [] if emulated else ["blocked_bf16"]
    assert names == {"exact": [], "float32": ["blocked"], "relaxed": ["blocked", *rounding]}


def test_a_product_is_tried_from_the_rows_on_that_its_row_names() -> None:
    layer = Layer(FrozenWeights(torch.randn(OUTS, INS), None, None, 1), linear=True)
    (row,) = [one for one in products() if one.name == "blocked_bf16x3"]
    emulated = matmul_algorithms((1, 1), (1, 1))[row.name].algorithm.emulated
    tried = [row.supports(problem_of(layer, "float32", (rows, INS), False)) for rows in (31, 32)]
    assert tried == [False, not emulated]


@pytest.mark.parametrize("row", products(), ids=lambda row: row.name)
@pytest.mark.parametrize("image", [(3, 7, 5), (1, 1, 1), (2, 1, 40)], ids=str)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_a_product_computes_convolutions_of_single_pixels(
    row: Product, image: tuple[int, int, int], added: bool, normed: bool
) -> None:
    """The reference rounds the operands where the row does."""
    torch.manual_seed(image[0])
    batch, height, width = image
    x, more = (_rows(batch, channels, height, width) for channels in (INS, OUTS))
    norm = Norm(*(torch.rand(OUTS) + 0.5 for _ in range(4)), 1e-5) if normed else None
    weights = FrozenWeights(torch.randn(OUTS, INS, 1, 1), torch.randn(OUTS), norm, 1)
    layer = Layer(weights, activation="relu6" if added else "")
    problem = problem_of(layer, "relaxed", tuple(x.shape), added)
    assert row.can_run(problem)
    out = torch.full_like(more, float("nan"))
    row.bind(PlacedLayer(layer, problem, x, out, more if added else None, out)).run()
    weight = weights.folded()
    operands = (x.bfloat16(), weight.bfloat16()) if row.rounds == "both" else (x, weight)
    assert weights.bias is not None
    sums = F.conv2d(*(one.double() for one in operands), weights.bias.double())
    expected = F.relu6(sums + more.double()) if added else sums
    magnitude = F.conv2d(*(one.double().abs() for one in operands)) + 10
    bound = (INS + 4) * 2.0**-24 * magnitude
    assert ((out.double() - expected).abs() <= bound).all()


def _rows(*shape: int) -> Tensor:
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)
