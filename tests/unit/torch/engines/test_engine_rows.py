"""Each row of the table builds an engine that computes what the model does."""

from __future__ import annotations

import pytest
import torch
from engine_fakes import Net
from torch import nn
from torch.utils import _pytree as pytree

from bestof.torch.engines.answer import Answer
from bestof.torch.engines.engine import Engine
from bestof.torch.engines.table import ENGINES

ROWS = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
SLOW = ("torch.compile", "torch.compile max-autotune", "zentorch")


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.long] if one.name in SLOW else [])
        for one in ENGINES
    ],
)
@pytest.mark.parametrize("grad", [True, False])
def test_an_engine_computes_what_the_model_does(engine: Engine, grad: bool) -> None:
    if engine.missing:
        pytest.skip(f"{', '.join(engine.missing)} is not installed")
    torch.manual_seed(0)
    model = Net().eval()
    scale = torch.randn(4)
    inputs = pytree.tree_flatten(((ROWS,), {"scale": scale}))
    with torch.set_grad_enabled(grad):
        answer = Answer(engine, model, inputs, "float32", None)
        expected = [
            (rows, model(rows, scale=scale)["result"].detach())
            for rows in (ROWS, ROWS.flip(0), ROWS.t().contiguous().t())
        ]
        got = [answer.nested(answer.leaves([rows, scale])) for rows, _ in expected]
    for one, (_, right) in zip(got, expected, strict=True):  # none overwrites an earlier one
        assert one["label"] == "net"
        torch.testing.assert_close(one["result"], right)
    assert torch.is_grad_enabled()
    assert all(one.requires_grad for one in model.parameters())


def test_a_layer_that_traces_differently_without_gradients_reaches_openvino() -> None:
    (engine,) = (one for one in ENGINES if one.name == "openvino")
    if engine.missing:
        pytest.skip("openvino is not installed")
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    rows = torch.randn(1, 5, 8)
    answer = Answer(engine, model, pytree.tree_flatten(((rows,), {})), "float32", None)
    torch.testing.assert_close(answer.leaves([rows])[0], model(rows).detach())
