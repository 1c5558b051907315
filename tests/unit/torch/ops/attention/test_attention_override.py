"""Attention: either alternative gives PyTorch's results and gradients within the bounds of float32,
and only what is worth it is looked into."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from attention_case import NAMES, ON, Order, attend, hold, mask_of, operands, override, problems
from torch import Tensor, nn
from torch.nn import functional

import bestof.torch as integration
from bestof.errors import KernelError
from bestof.selection import use_policy
from bestof.torch.ops.attention import forward
from bestof.torch.ops.attention.attention import Attention

LEAST = Attention.least  # before conftest.py replaces it


@pytest.mark.parametrize("kind", ["none", "causal", "added", "boolean", "keys", "hidden"])
@pytest.mark.parametrize("name", NAMES)
def test_results_and_gradients(name: str, kind: str) -> None:
    given, mask = operands(), mask_of(kind)
    gradient = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(2))

    def step(dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [x.to(dtype).requires_grad_() for x in given]
        added = mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
        out = attend(*leaves, attn_mask=added, is_causal=kind == "causal")
        return out, *torch.autograd.grad(out, leaves, gradient.to(dtype))

    expected, wide = step(torch.float32), step(torch.float64)
    use_policy(Order(name))
    integration.enable(ON)
    got = step(torch.float32)
    (problem,) = problems()
    assert problem.decision == name
    for one, right, exact in zip(got, expected, wide, strict=True):
        # Sums over 33 keys, 20 queries or 16 numbers; weights that err by a few roundings each.
        hold(one, right, exact, 200)


@pytest.mark.parametrize("shared", [1, 2])
def test_shared_heads(shared: int) -> None:
    q, k, v = operands(shared=shared)
    expected = attend(q, k, v, enable_gqa=True, scale=0.3)
    use_policy(Order("native"))
    integration.enable(ON)
    got = attend(q, k, v, enable_gqa=True, scale=0.3)
    wide = attend(q.double(), k.double(), v.double(), enable_gqa=True, scale=0.3)
    hold(got, expected, wide, 100)
    assert problems()[0].decision == "native"


def test_layouts_are_pytorchs() -> None:
    joined = torch.randn(2, 20, 3, 4, 16, generator=torch.Generator().manual_seed(3))
    views = [
        tuple(joined[:, :, i].transpose(1, 2) for i in range(3)),
        tuple(joined.permute(2, 3, 0, 1, 4).contiguous().transpose(1, 2).unbind(0)),
        tuple(joined[:, :, i].transpose(1, 2)[..., :7] for i in range(3)),
    ]
    expected = [attend(*view) for view in views]
    use_policy(Order("native"))
    integration.enable(ON)
    for view, right in zip(views, expected, strict=True):
        hold(attend(*view), right, attend(*(x.double() for x in view)), 100)
    assert {problem.decision for problem in problems()} == {"native"}


def test_nan_spreads_no_farther_than_pytorchs() -> None:
    for operand in range(3):
        given = operands(queries=33)
        given[operand][1, 2, 17, 3] = torch.nan
        integration.disable()
        expected = attend(*given, is_causal=True).isnan()
        use_policy(Order("native"))
        integration.enable(ON)
        got = attend(*given, is_causal=True).isnan()
        assert not (got & ~expected).any()
        assert got[1, 2, 17:].any(-1).all() if operand else got[1, 2, 17].all()


class Layer(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.joined, self.last = nn.Linear(32, 96), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.joined(x).reshape(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = attend(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        return self.last(torch.relu(x + mixed))


def losses(steps: int) -> list[float]:
    torch.manual_seed(0)
    layer, x = Layer(), torch.randn(3, 40, 32)
    wanted = x.cumsum(1)[..., :1] / 10
    optimizer = torch.optim.SGD(layer.parameters(), 0.05)
    found = []
    for _ in range(steps):
        loss = functional.mse_loss(layer(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_training_takes_the_same_course(name: str) -> None:
    """A step multiplies differences of rounding by less than 2 here: 30 steps stay within 1e-3."""
    expected = losses(30)
    use_policy(Order(name))
    integration.enable({"kernel": {"product": False, "attention": True}})
    torch.testing.assert_close(losses(30), expected, rtol=1e-3, atol=0)
    assert expected[-1] < 0.7 * expected[0]
    assert problems()[0].decision == name


def test_inference() -> None:
    given = operands()
    expected = attend(*given)
    use_policy(Order("native"))
    integration.enable(ON)
    with torch.inference_mode():
        got = attend(*(x.clone() for x in given))
    with torch.no_grad():
        torch.testing.assert_close(attend(*given), expected)
    torch.testing.assert_close(got, expected)
    assert len(problems()) == 1


def test_the_alternatives_are_raced_and_pytorch_is_put_back() -> None:
    given = operands()
    plain = attend(*given)
    integration.enable(ON)
    for _ in range(60):
        torch.testing.assert_close(attend(*given), plain)
    selector = override().selector
    assert selector.report().problems[0].settled
    integration.disable()
    calls = selector.settled_calls
    assert torch.equal(attend(*given), plain)
    assert selector.settled_calls == calls


class Marked(Tensor):
    """A subclass of Tensor, which may have another meaning."""


def refuse_native(*_: Any, **__: Any) -> Any:
    raise AssertionError("native attention was called")


PASSED: dict[str, tuple[dict[str, Any], Any]] = {
    "double": ({}, lambda x: x.double()),
    "a subclass": ({}, lambda x: x.as_subclass(Marked)),
    "numbers apart": ({}, lambda x: x.mT.contiguous().mT),
    "no queries": ({}, lambda x: x[:, :, :0]),
    "no batch": ({}, lambda x: x[:0]),
    "no numbers": ({}, lambda x: x[..., :0]),
    "dropout": ({"dropout_p": 1.0}, lambda x: x),
    "a scale that is no number": ({"scale": float("nan")}, lambda x: x),
}


@pytest.mark.parametrize("case", PASSED.values(), ids=PASSED)
def test_the_rest_is_pytorchs_own(
    case: tuple[dict[str, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options, change = case
    given = [change(x) for x in operands(queries=33)]
    expected = attend(*given, **options)
    monkeypatch.setattr(forward, "AttentionPlan", refuse_native)
    use_policy(Order("native"))
    integration.enable(ON)
    got = attend(*given, **options)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert type(got) is type(expected)
    assert problems() == ()


def test_exact_and_deterministic_calls_are_pytorchs_own() -> None:
    given = operands()
    expected = attend(*given)
    integration.enable({"kernel": {"accuracy": "exact", "attention": True}})
    assert torch.equal(attend(*given), expected)
    use_policy(Order("native"))
    integration.enable(ON)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(attend(*given), expected)
    finally:
        torch.use_deterministic_algorithms(False)
    assert problems() == ()


def test_what_pytorch_refuses_it_goes_on_to_refuse() -> None:
    direct = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q, k, v = operands()
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((q, k[..., :4], v[..., :4]), {}),
        ((q, k, v.double()), {}),
        ((q[0], k[0], v[0]), {}),
        ((q, k, v[..., :4]), {}),
        ((q, k, v), {"attn_mask": torch.zeros(33)}),
        ((q, k, v), {"attn_mask": torch.zeros(19, 33)}),
        ((q, k, v), {"attn_mask": torch.zeros(20, 33, dtype=torch.bool)}),
    ]
    own = []
    for arguments, options in calls:
        with pytest.raises(RuntimeError) as refused:
            direct(*arguments, **options)
        own.append(str(refused.value))
    integration.enable(ON)
    for (arguments, options), message in zip(calls, own, strict=True):
        with pytest.raises(RuntimeError) as caught:
            direct(*arguments, **options)
        assert str(caught.value) == message
    assert problems() == ()


def test_pytorch_answers_calls_that_the_native_kernel_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KernelError("scratch: no memory for 7 bytes of attention")

    given = operands()
    expected = attend(*given)
    monkeypatch.setattr(forward, "AttentionPlan", fail)
    integration.enable(ON)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [attend(*given) for _ in range(8)]
    assert all(torch.equal(result, expected) for result in results)
    assert any("'native' was disqualified" in str(one.message) for one in caught)
    assert problems()[0].decision == "as is"


def test_a_mode_of_the_program_changes_nothing() -> None:
    given = operands()
    expected = attend(*given)
    use_policy(Order("native"))
    integration.enable(ON)
    scripted = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with torch.device("meta"):
        got, sums = scripted(*given)
    assert got.device.type == sums.device.type == "cpu"
    torch.testing.assert_close(got, expected)


def test_the_default_dtype_of_the_program_changes_nothing() -> None:
    given = operands()
    expected = attend(*given)
    use_policy(Order("native"))
    integration.enable(ON)
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(attend(*given), expected)
    finally:
        torch.set_default_dtype(torch.float32)
    assert problems()[0].decision == "native"


def test_calls_of_equal_problems_have_plans_of_their_own() -> None:
    """Other gaps between tokens, another scale: the same problem, other numbers."""
    use_policy(Order("native"))
    integration.enable(ON)
    for gap in (16, 48):
        wide = torch.randn(2, 20, gap // 16, 4, 16, generator=torch.Generator().manual_seed(gap))
        x = wide[:, :, 0].transpose(1, 2)
        for scale in (None, 0.1, 0.7):
            expected = attend(*[x.double()] * 3, scale=scale)
            assert (attend(x, x, x, scale=scale) - expected).abs().max() < 1e-5
    assert len(problems()) == 1


def test_three_dimensions_give_pytorchs_results() -> None:
    """PyTorch 2.14 adds a dimension and calls the fused operator; 2.13 does not."""
    given = [x[0] for x in operands()]
    expected = attend(*given)
    use_policy(Order("native"))
    integration.enable(ON)
    torch.testing.assert_close(attend(*given), expected)


def test_small_attention_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attention, "least", LEAST)
    integration.enable(ON)
    attend(*operands(queries=127, keys=256, size=32, heads=4, shared=4))
    assert problems() == ()
    attend(*operands(queries=128, keys=256, size=32, heads=4, shared=4))
    assert len(problems()) == 1


def test_it_is_on_unless_switched_off() -> None:
    integration.enable({"kernel": {"attention": False}})
    assert not override().is_registered
    attend(*operands())
    assert problems() == ()
    integration.enable()
    attend(*operands())
    assert len(problems()) == 1
    with integration.enabled({"kernel": {"attention": False}}):
        attend(*operands(queries=21))
        assert len(problems()) == 1
    attend(*operands(queries=21))
    assert len(problems()) == 2
