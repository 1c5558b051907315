"""Shared by the tests of the shim: overrides for which PyTorch's own kernel was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import bestof.torch as integration
from bestof.selection import Fixed, use_policy
from bestof.selection.policies.policy import Search
from bestof.torch.dispatch.convolution import override as override_of_convolutions
from bestof.torch.dispatch.convolution.override import ConvolutionOverride
from bestof.torch.dispatch.overrides import convolution_override


class AsIs:
    def start(self, alternatives: Sequence[str]) -> Search:
        return Fixed("as is" if "as is" in alternatives else "independent").start(alternatives)


@pytest.fixture
def override() -> ConvolutionOverride:
    use_policy(AsIs())
    integration.enable()
    found = convolution_override()
    assert found is not None
    assert found.shim is not None
    assert found.is_shim_in
    return found


@pytest.fixture(params=["shim", "python"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ConvolutionOverride:
    """As on a PyTorch without what the shim is made of, too."""
    if request.param == "python":
        monkeypatch.setattr(override_of_convolutions, "make_operators", lambda *_: None)
        use_policy(AsIs())
        integration.enable()
        found = convolution_override()
        assert found is not None
        assert found.shim is None
        return found
    return request.getfixturevalue("override")  # type: ignore[no-any-return]


def operands(groups: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, weight = (
        torch.randn(2, 4, 6, 6, requires_grad=True),
        torch.randn(4, 4 // groups, 3, 3, requires_grad=True),
    )
    return x, weight, torch.randn(4, requires_grad=True)


def lookups(override: ConvolutionOverride, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Python looks up from now on."""
    met: list[Any] = []
    for name in ("find_forward", "find_backward"):
        find = getattr(override.layer, name)
        monkeypatch.setattr(
            override.layer, name, lambda *given, find=find: (met.append(given), find(*given))[1]
        )
    return met
