"""Plans with attention."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from plan_results import chosen_by, is_close, operations
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import BestofWarning, TorchError
from bestof.kernels import AttentionPlan
from bestof.torch.plan.file.container import read, write
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.steps.raced_step import RacedStep


class Attended(nn.Module):
    """Attention of 4 heads, whose keys and values have fewer heads and are repeated."""

    def __init__(self, shared: int, mask: str) -> None:
        super().__init__()
        self.shared, self.mask = shared, mask
        self.q, self.k, self.v = (nn.Linear(24, 6 * n) for n in (4, shared, shared))
        self.out = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            one(x).view(batch, tokens, -1, 6).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        if self.shared < 4:
            shape = batch, self.shared, 4 // self.shared, tokens, 6
            k, v = (one[:, :, None].expand(shape).reshape(batch, 4, tokens, 6) for one in (k, v))
        mask: Tensor | None = None
        if self.mask == "bool":
            mask = torch.arange(tokens)[:, None] >= torch.arange(tokens)[None]
        if self.mask == "float":
            mask = x[:, None, :, :1].expand(batch, 4, tokens, tokens).to(x.dtype)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.mask == "causal")
        found: Tensor = self.out(y.transpose(1, 2).reshape(batch, tokens, 24))
        return found


@pytest.mark.parametrize("mask", ["", "causal", "bool", "float"])
@pytest.mark.parametrize("shared", [4, 2, 1])
def test_attention(shared: int, mask: str) -> None:
    torch.manual_seed(shared)
    model, x = Attended(shared, mask).eval(), torch.randn(2, 9, 24)
    plan = bt.optimize(model, x)
    found = operations(plan, x)
    assert found.count("attention") == 1
    assert "aten.scaled_dot_product_attention.default" not in found
    assert found[-1] == "linear"
    assert found[-2] == "aten.reshape.default"
    for name in ("native", "pytorch"):
        assert is_close(chosen_by(plan, name, x), model, x), name
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    assert is_close(bt.load(file), model, x)


def test_a_wrong_kernel_gives_way_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever wins the race, the native result is compared before a plan may use it."""
    torch.manual_seed(0)
    model, x = Attended(4, "").eval(), torch.randn(2, 9, 24)
    monkeypatch.setattr(AttentionPlan, "run", lambda *_: None)
    monkeypatch.setattr(RacedStep, "algorithm", property(_native_unless_ordered))
    with pytest.warns(BestofWarning, match="native puts NaN"):
        plan = bt.optimize(model, x)
    assert is_close(plan, model, x)


def _native_unless_ordered(step: RacedStep) -> str | None:
    return step.choice.algorithm if step.choice.is_ordered else "native"


@pytest.mark.parametrize("part", ["scale", "eps", "shape"])
def test_a_changed_file_is_refused(part: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 24), nn.LayerNorm(24), Attended(4, "")).eval()
    file = io.BytesIO()
    bt.optimize(model, torch.randn(2, 9, 24)).save(file)
    content, tensors = read(io.BytesIO(file.getvalue()))
    nodes = {
        one["operation"]["name"]: one
        for one in content["programs"][0]["nodes"]
        if "operation" in one
    }
    if part == "scale":
        nodes["attention"]["operation"]["scale"] = "1"
    elif part == "eps":
        nodes["row_norm"]["operation"]["eps"] = -1.0
    else:
        nodes["attention"]["val"]["tensor"][0] = [2, 9, 4, 7]
    changed = io.BytesIO()
    write(changed, content, tensors)
    changed.seek(0)
    with pytest.raises(TorchError, match="cannot be read here"):
        bt.load(changed)


class Untransposed(nn.Module):
    """Attention that stays PyTorch's, which marks it as random, beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return F.scaled_dot_product_attention(y, y, y)


def test_plans_with_attention_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention without dropout draws no random numbers."""
    model, x = Untransposed().eval(), torch.randn(2, 4, 9, 6)
    assert "aten.scaled_dot_product_attention.default" in operations(bt.optimize(model, x), x)
    wrong = Layer.product
    monkeypatch.setattr(Layer, "product", lambda *given: 2 * wrong(*given))
    with pytest.warns(BestofWarning, match="PyTorch's own kernel takes its place"):
        bt.optimize(model, x)


@pytest.mark.parametrize("mask", ["", "causal", "bool", "float"])
@pytest.mark.parametrize(("shared", "tokens"), [(4, 1), (2, 1), (1, 4), (4, 5), (2, 70)])
def test_attention_of_bfloat16(shared: int, tokens: int, mask: str) -> None:
    """Some ten roundings, each of 2^-8 of a number."""
    torch.manual_seed(shared)
    model, x = Attended(shared, mask).eval().bfloat16(), torch.randn(2, tokens, 24).bfloat16()
    plan = bt.optimize(model, x)
    assert operations(plan, x).count("attention") == 1
    with torch.no_grad():
        right = copy.deepcopy(model).double()(x.double())
    for name in ("native", "pytorch"):
        got = chosen_by(plan, name, x)(x)
        assert got.dtype is torch.bfloat16
        error = torch.linalg.vector_norm(got.double() - right)
        assert error <= 10 * 2**-8 * torch.linalg.vector_norm(right), name
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    assert torch.equal(bt.load(file)(x), plan(x))


class Masked(nn.Module):
    """Attention with a mask that is an input."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)


@pytest.mark.parametrize("name", ["native", "pytorch"])
@pytest.mark.parametrize("kind", ["hidden", "distances"])
@pytest.mark.parametrize("queries", [4, 30])
def test_bfloat16_attention_keeps_a_float32_mask(queries: int, name: str, kind: str) -> None:
    """Rounded to bfloat16, the smallest number of float32 is minus infinity.

    Distances of hundreds lose their fractions.
    """
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, tokens, 16).bfloat16() for tokens in (queries, 600, 600))
    mask = torch.full((1, 1, queries, 600), torch.finfo(torch.float32).min)
    if kind == "distances":
        mask = -300.3 - 0.25 * torch.arange(599.0, -1, -1).expand(mask.shape).contiguous()
    plan = bt.optimize(Masked().eval(), (q, k, v, torch.zeros_like(mask)), tune=False)
    got = chosen_by(plan, name, q, k, v, torch.zeros_like(mask))(q, k, v, mask)
    right = Masked()(q.double(), k.double(), v.double(), mask.double())
    error = torch.linalg.vector_norm(got.double() - right)
    assert error <= 10 * 2**-8 * torch.linalg.vector_norm(right)
