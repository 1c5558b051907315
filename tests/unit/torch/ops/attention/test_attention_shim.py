"""C++ answers settled attention, and gives what Python gives."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from attention_case import NAMES, ON, Order, attend, hold, mask_of, operands, override

import bestof.torch as integration
from bestof.errors import BestofWarning
from bestof.kernels import AttentionPlan
from bestof.kernels.addresses import plan_address
from bestof.selection import use_policy
from bestof.torch.backends.shim import ASKED_EVERY, OperatorShim
from bestof.torch.ops.attention import attention


def shim() -> OperatorShim:
    found = override().shim
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["none", "causal", "added", "boolean", "keys", "hidden"])
@pytest.mark.parametrize("name", NAMES)
def test_a_settled_call_does_not_enter_python(name: str, kind: str) -> None:
    given, mask = operands(), mask_of(kind)
    options: dict[str, Any] = {"attn_mask": mask, "is_causal": kind == "causal"}
    expected = attend(*given, **options)
    added = mask.double() if mask is not None and mask.is_floating_point() else mask
    wide = attend(*(x.double() for x in given), **(options | {"attn_mask": added}))
    use_policy(Order(name))
    integration.enable(ON)
    for _ in range(4):
        attend(*given, **options)
    asked = shim().asked
    for _ in range(8):
        hold(attend(*given, **options), expected, wide, 100)
    assert shim().asked == asked
    for other in ({"scale": 0.3}, {"is_causal": kind != "causal", "attn_mask": None}):
        attend(*given, **(options | other))
        asked += 1
        assert shim().asked == asked


def test_the_selector_samples_settled_calls() -> None:
    given = operands()
    use_policy(Order("native"))
    integration.enable(ON)
    for _ in range(3 * ASKED_EVERY):
        attend(*given)
    assert 2 <= override().selector.settled_calls <= 6
    operation = override().operation
    assert isinstance(operation, attention.Attention)
    assert len(operation._made) == 1


def test_settled_gradients_and_parts_of_a_joined_projection() -> None:
    joined = torch.randn(2, 20, 3, 4, 16, generator=torch.Generator().manual_seed(3))
    leaves = [joined[:, :, i].transpose(1, 2).requires_grad_() for i in range(3)]
    expected = torch.autograd.grad(attend(*leaves).square().sum(), leaves)
    use_policy(Order("native"))
    integration.enable(ON)
    for _ in range(6):
        got = torch.autograd.grad(attend(*leaves).square().sum(), leaves)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    asked = shim().asked
    attend(*leaves)
    assert shim().asked == asked


def test_scores_that_overflow_give_no_more_nan_than_pytorchs() -> None:
    """The gradient of v is NaN for the keys of infinite scores alone."""
    given = [x.clone() for x in operands(queries=33)]
    given[0][1, 2, 3], given[1][1, 2, 7] = 1e30, 1e30
    for _ in range(2):
        found = []
        for name in NAMES:
            integration.disable()
            use_policy(Order(name))
            integration.enable(ON)
            leaves = [x.clone().requires_grad_() for x in given]
            out = attend(*leaves)
            found.append((out, *torch.autograd.grad(out.sum(), leaves)))
        for own, native in zip(*found, strict=True):
            assert not (native.isnan() & ~own.isnan()).any()
    seen = found[1][3].isnan().any(-1)
    assert seen[1, 2, 7]
    assert seen.sum() == 1


def test_a_wrong_kernel_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C++ kernel has the plan of another scale."""
    right = attention.native_plan
    other = AttentionPlan(
        [(2, 4, 20, 16), (2, 4, 33, 16), (2, 4, 33, 16), (2, 4, 20, 16), None, (2, 4, 20)],
        [(1280, 320, 16, 1), *[(2112, 528, 16, 1)] * 2, (1280, 320, 16, 1), None, (80, 1, 4)],
        scale=0.9,
    )
    monkeypatch.setattr(
        attention,
        "native_plan",
        lambda _plan, calls, _address, *rest: right(other, calls, plan_address(other), *rest),
    )
    given = operands()
    expected = attend(*given)
    use_policy(Order("native"))
    integration.enable(ON)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(6):
            torch.testing.assert_close(attend(*given), expected)
    (warning,) = caught
    assert warning.category is BestofWarning
    assert "'native' does not give the result" in str(warning.message)
    asked = shim().asked
    torch.testing.assert_close(attend(*given), expected)
    assert shim().asked == asked + 1
