"""The gradients of attention are chosen by themselves, and answered as PyTorch answers them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_case import (
    NAMES,
    ON,
    OneEach,
    Order,
    attend,
    backward_override,
    decisions,
    hold,
    mask_of,
    operands,
)
from torch import Tensor

import bestof.torch as integration
from bestof.errors import KernelError
from bestof.kernels.addresses import plan_address
from bestof.kernels.attention_backward import AttentionBackwardPlan
from bestof.selection import use_policy
from bestof.torch.ops.attention import attention, backward
from bestof.torch.ops.attention.attention import Attention, Operands

LEAST = Attention.least  # before conftest.py replaces it
_direct = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def problems() -> tuple[Any, ...]:
    return tuple(backward_override().selector.report().problems)


def upstream(like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(5)).to(like.dtype)


def gradients_of(given: tuple[Tensor, ...], **options: Any) -> tuple[Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in given]
    out = attend(*leaves, **options)
    return torch.autograd.grad(out, leaves, upstream(out))


def in_float64(given: tuple[Tensor, ...], **options: Any) -> tuple[Tensor, ...]:
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options = options | {"attn_mask": mask.double()}
    return gradients_of(tuple(x.double() for x in given), **options)


@pytest.mark.parametrize("kind", ["none", "causal", "added", "boolean", "keys", "hidden"])
@pytest.mark.parametrize("name", NAMES)
def test_a_settled_call_does_not_enter_python(name: str, kind: str) -> None:
    given = operands()
    options: dict[str, Any] = {"attn_mask": mask_of(kind), "is_causal": kind == "causal"}
    expected = gradients_of(given, **options)
    wide = in_float64(given, **options)
    use_policy(Order(name))
    integration.enable(ON)
    for _ in range(4):
        gradients_of(given, **options)
    assert problems()[0].decision == name
    shim = backward_override().shim
    assert shim is not None
    asked = shim.asked
    for _ in range(8):
        for got, own, exact in zip(gradients_of(given, **options), expected, wide, strict=True):
            hold(got, own, exact, 400)
    assert shim.asked == asked
    gradients_of(given, scale=0.3)
    assert shim.asked == asked + 1


@pytest.mark.parametrize("forward", NAMES)
@pytest.mark.parametrize("backward", NAMES)
def test_either_backward_pass_takes_what_either_forward_pass_returns(
    forward: str, backward: str
) -> None:
    given = operands(queries=33)
    wide = in_float64(given)
    expected = gradients_of(given)
    use_policy(OneEach(forward, backward))
    integration.enable(ON)
    for _ in range(6):
        for got, own, exact in zip(gradients_of(given), expected, wide, strict=True):
            hold(got, own, exact, 400)
    assert decisions() == [forward, backward]


@pytest.mark.parametrize("shared", [1, 2])
def test_heads_that_share_keys(shared: int) -> None:
    given = operands(shared=shared)
    wide = in_float64(given, enable_gqa=True)
    expected = gradients_of(given, enable_gqa=True)
    use_policy(Order("native"))
    integration.enable(ON)
    for _ in range(4):
        got = gradients_of(given, enable_gqa=True)
    for one, own, exact in zip(got, expected, wide, strict=True):
        hold(one, own, exact, 1600)
    assert [one.decision for one in problems()] == ["native"]


def test_parts_of_a_joined_projection_and_an_expanded_gradient() -> None:
    joined = torch.randn(2, 20, 3, 4, 16, generator=torch.Generator().manual_seed(3))
    leaves = [joined[:, :, i].transpose(1, 2).requires_grad_() for i in range(3)]
    expected = torch.autograd.grad(attend(*leaves).square().sum(), leaves)
    whole = torch.autograd.grad(attend(*leaves).sum(), leaves)  # a gradient without strides
    use_policy(Order("native"))
    integration.enable(ON)
    for _ in range(4):
        got = torch.autograd.grad(attend(*leaves).square().sum(), leaves)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert len(problems()) == 1
    got = torch.autograd.grad(attend(*leaves).sum(), leaves)
    torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-5)


def refuse_native(*_: Any, **__: Any) -> Any:
    raise AssertionError("native gradients were called")


def test_other_dtypes_are_pytorchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tuple(x.double() for x in operands(queries=33))
    expected = gradients_of(given)
    monkeypatch.setattr(backward, "AttentionBackwardPlan", refuse_native)
    use_policy(Order("native"))
    integration.enable(ON)
    for got, own in zip(gradients_of(given), expected, strict=True):
        assert torch.equal(got, own)
    assert problems() == ()


def test_deterministic_calls_are_pytorchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands()
    expected = gradients_of(given)
    monkeypatch.setattr(backward, "AttentionBackwardPlan", refuse_native)
    use_policy(Order("native"))
    integration.enable(ON)
    torch.use_deterministic_algorithms(True)
    try:
        got = gradients_of(given)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, own) for one, own in zip(got, expected, strict=True))
    assert problems() == ()


def test_a_second_derivative_is_refused_as_pytorch_refuses_it() -> None:
    def second() -> str:
        leaves = [x.detach().requires_grad_() for x in operands()]
        (first,) = torch.autograd.grad(attend(*leaves).sum(), leaves[:1], create_graph=True)
        with pytest.raises(RuntimeError) as refused:
            torch.autograd.grad(first.sum(), leaves)
        return str(refused.value)

    message = second()
    use_policy(Order("native"))
    integration.enable(ON)
    assert second() == message


def test_what_pytorch_refuses_it_goes_on_to_refuse() -> None:
    q, k, v = operands()
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    gradient = upstream(out)
    calls: list[tuple[Tensor, ...]] = [
        (gradient, q, k[..., :4], v[..., :4], out, sums),
        (gradient, q, k, v.double(), out, sums),
    ]
    own = []
    for arguments in calls:
        with pytest.raises(RuntimeError) as refused:
            _direct(*arguments, 0.0, False)
        own.append(str(refused.value))
    integration.enable(ON)
    for arguments, message in zip(calls, own, strict=True):
        with pytest.raises(RuntimeError) as caught:
            _direct(*arguments, 0.0, False)
        assert str(caught.value) == message
    assert problems() == ()


def stay_close(given: tuple[Tensor, ...], expected: tuple[Tensor, ...], calls: int) -> None:
    for _ in range(calls):
        for got, own in zip(gradients_of(given), expected, strict=True):
            torch.testing.assert_close(got, own, rtol=1e-4, atol=1e-5)


def test_pytorch_answers_what_the_native_kernel_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KernelError("scratch: no memory for 7 bytes of the gradients of attention")

    given = operands()
    expected = gradients_of(given)
    monkeypatch.setattr(backward, "AttentionBackwardPlan", fail)
    integration.enable(ON)
    with pytest.warns(match="'native' was disqualified"):
        stay_close(given, expected, 8)
    assert problems()[0].decision == "as is"


def test_a_wrong_kernel_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C++ kernel has the plan of another scale."""
    right = attention.native_plan

    def with_another_scale(plan: Any, calls: int, address: int, *rest: Any) -> Any:
        if isinstance(plan, AttentionBackwardPlan):
            plan = wrong
            address = plan_address(plan)
        return right(plan, calls, address, *rest)

    given = operands()
    q, k, v = given
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    results = backward.AttentionBackward().results(Operands((out, q, k, v, out, sums), None, None))
    arrays = (upstream(out), q, k, v, out, sums, None, *results)
    wrong = AttentionBackwardPlan(
        [None if x is None else x.shape for x in arrays],
        [None if x is None else x.stride() for x in arrays],
        scale=0.9,
    )
    expected = gradients_of(given)
    monkeypatch.setattr(attention, "native_plan", with_another_scale)
    use_policy(Order("native"))
    integration.enable(ON)
    with pytest.warns(match="'native' does not give the result"):
        stay_close(given, expected, 6)


def test_small_gradients_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attention, "least", LEAST)
    integration.enable(ON)
    gradients_of(operands(queries=127, keys=256, size=32, heads=4, shared=4))
    assert problems() == ()
    gradients_of(operands(queries=128, keys=256, size=32, heads=4, shared=4))
    assert len(problems()) == 1
