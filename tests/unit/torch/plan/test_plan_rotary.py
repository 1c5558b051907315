"""Plans with rotary position embeddings."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plan_results import chosen_by, is_close, operations
from torch import Tensor, nn

import bestof
import bestof.torch as bt
from bestof.errors import BestofWarning, TorchError
from bestof.torch.backends.shim import Native
from bestof.torch.ops.table import named
from bestof.torch.plan.file.container import read, write

Turn = Callable[[Tensor], Tensor]


def by_slices(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def by_chunks(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), 3)


class Rotated(nn.Module):
    """Attention of 4 heads of 6, with two heads of keys, whose tokens have positions."""

    def __init__(self, turn: Turn = by_slices) -> None:
        super().__init__()
        self.turn = turn
        self.q, self.k, self.v = (nn.Linear(24, 6 * heads, bias=False) for heads in (4, 2, 2))
        self.out = nn.Linear(24, 24)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        q, k, v = (
            one(x).view(*x.shape[:2], -1, 6).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        angles = positions[:, :, None].float() * torch.tensor([1.0, 0.1, 0.01])
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]
        q, k = q * cos + self.turn(q) * sin, (k * cos) + (self.turn(k) * sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        found: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return found


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 9, 24).to(dtype), torch.arange(9).repeat(2, 1) + 3


@pytest.mark.parametrize("turn", [by_slices, by_chunks])
def test_queries_and_keys(turn: Turn) -> None:
    x, positions = inputs()
    model = Rotated(turn).eval()
    plan = bt.optimize(model, (x, positions))
    found = operations(plan, x, positions)
    assert found.count("rotary") == 2
    assert "aten.neg.default" not in found
    assert found.count("aten.cat.default") == 1  # of the angles
    for name in ("native", "pytorch"):
        assert is_close(chosen_by(plan, name, x, positions), model, x, positions), name
        assert is_close(plan, model, x, positions + 100), name
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    assert is_close(bt.load(file), model, x, positions)


def test_a_joined_product_is_read_where_it_lies() -> None:
    x, positions = inputs()
    plan = bt.optimize(Rotated().eval(), (x, positions))
    assert operations(plan, x, positions).count("linear") == 2


@pytest.mark.parametrize("name", ["native", "pytorch"])
def test_bfloat16(name: str) -> None:
    """Some ten roundings, each of 2^-8 of a number. The model rounds the angles, too."""
    x, positions = inputs(torch.bfloat16)
    model = Rotated().eval().bfloat16()
    plan = bt.optimize(model, (x, positions))
    assert operations(plan, x, positions).count("rotary") == 2
    with torch.no_grad():
        right = copy.deepcopy(model).double()(x.double(), positions)
        got = chosen_by(plan, name, x, positions)(x, positions)
    assert got.dtype is torch.bfloat16
    error = torch.linalg.vector_norm(got.double() - right)
    assert error <= 10 * 2**-8 * torch.linalg.vector_norm(right)


class Formula(nn.Module):
    """A formula of a value, a table for cosines and one for sines."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(8, 8), function
        self.cos, self.sin = (nn.Parameter(torch.rand(5, 8)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x), self.cos, self.sin)


class Bare(nn.Module):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + by_slices(x) * sin


@pytest.mark.parametrize(
    "function",
    [
        lambda x, cos, sin: x * cos + torch.cat((-x[..., 3:], x[..., :3]), -1) * sin,
        lambda x, cos, sin: x * cos + torch.cat((x[..., 4:], x[..., :4]), -1) * sin,
        lambda x, cos, sin: x * cos + torch.cat((-x[..., :4], x[..., 4:]), -1) * sin,
        lambda x, cos, sin: x * cos + torch.cat((x[..., 4:], -x[..., :4]), -1) * sin,
        lambda x, cos, sin: x * cos + torch.cat((-x[..., ::2], x[..., 1::2]), -1) * sin,
        lambda x, cos, sin: x * cos - by_slices(x) * sin,
        lambda x, cos, sin: torch.add(x * cos, by_slices(x) * sin, alpha=2),
        lambda x, cos, sin: x.sin() * cos + by_slices(x) * sin,
        lambda x, cos, sin: x * cos[:, :1] + by_slices(x) * sin,
        lambda x, cos, sin: x * 0.5 + by_slices(x) * sin,
        lambda x, cos, sin: (y := x * cos) + by_slices(x) * sin + y,
        lambda x, cos, sin: x * cos + (y := by_slices(x)) * sin + y,
        lambda x, cos, sin: x[0] * cos + by_slices(x[0]) * sin,
        lambda x, cos, sin: x[0, 0] * cos + by_slices(x[0, 0]) * sin,
    ],
)
def test_what_only_resembles_it_stays(function: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    model, x = Formula(function).eval(), torch.randn(2, 3, 5, 8)
    plan = bt.optimize(model, x)
    assert "rotary" not in operations(plan, x)
    assert is_close(plan, model, x)


def test_an_output_has_the_strides_of_the_models() -> None:
    torch.manual_seed(0)
    model = Formula(lambda x, cos, sin: (y := x.transpose(1, 2)) * cos + by_slices(y) * sin).eval()
    x = torch.randn(2, 5, 3, 8)
    plan = bt.optimize(model, x)
    assert "rotary" in operations(plan, x)
    for name in ("native", "pytorch"):
        found = chosen_by(plan, name, x)(x)
        with torch.no_grad():
            assert found.stride() == model(x).stride()
        assert is_close(plan, model, x)


def test_a_wrong_kernel_gives_way_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs()
    model = Rotated().eval()
    bestof.use_policy("fixed:native")
    rotary = named("rotary", "test")
    by_pytorch, native = rotary.rows
    right = native.function

    def wrong(*operands: Any) -> Tensor:
        return 1.1 * right(*operands)

    monkeypatch.setattr(type(rotary), "rows", (by_pytorch, replace(native, function=wrong)))
    with pytest.warns(BestofWarning, match="wrong result: off by"):
        plan = bt.optimize(model, given)
    assert is_close(plan, model, *given)


def test_a_kernel_that_writes_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs()
    model = Rotated().eval()
    bestof.use_policy("fixed:native")
    monkeypatch.setattr(Native, "write", lambda *_: True, raising=True)
    with pytest.warns(BestofWarning, match="rotary 2x[24]x9x6: native: NaN"):
        plan = bt.optimize(model, given)
    monkeypatch.undo()
    assert is_close(plan, model, *given)


def test_reports_and_the_configuration_know_it() -> None:
    given, model = inputs(), Rotated().eval()
    bestof.use_policy("fixed:native")
    bt.enable()
    plan = bt.optimize(model, given)
    found = {(one.problem, one.chosen) for one in bt.summary().passes if one.name == "rotary"}
    assert found == {("2x4x9x6 threads=1", "native"), ("2x2x9x6 threads=1", "native")}
    assert "rotary" in operations(plan, *given)
    bt.enable({"kernel": {"without": ["rotary"]}})
    plan = bt.optimize(model, given)
    assert "rotary" not in operations(plan, *given)
    assert is_close(plan, model, *given)


def test_operands_of_other_strides_are_copied() -> None:
    """The kernel reads the strides of the first call."""
    x, cos, sin = torch.randn(2, 3, 5, 8), torch.rand(5, 8), torch.rand(5, 8)
    model = Bare().eval()
    plan = chosen_by(bt.optimize(model, (x, cos, sin)), "native", x, cos, sin)
    other = x.transpose(1, 2).contiguous().transpose(1, 2)
    for one in (x, other, x):
        assert is_close(plan, model, one, cos, sin)


@pytest.mark.parametrize("part", ["arguments", "shape", "table"])
def test_a_changed_file_is_refused(part: str) -> None:
    file = io.BytesIO()
    bt.optimize(Rotated().eval(), inputs()).save(file)
    content, tensors = read(io.BytesIO(file.getvalue()))
    nodes = content["programs"][0]["nodes"]
    rotary = next(one for one in nodes if one.get("operation", {}).get("name") == "rotary")
    if part == "arguments":
        rotary["args"] = rotary["args"][:2]
    elif part == "table":
        rotary["args"][1] = rotary["args"][0]
        rotary["args"][0] = rotary["args"][2]
    else:
        rotary["val"]["tensor"][0] = [2, 4, 9, 8]
    changed = io.BytesIO()
    write(changed, content, tensors)
    changed.seek(0)
    with pytest.raises(TorchError, match="cannot be read here"):
        bt.load(changed)
