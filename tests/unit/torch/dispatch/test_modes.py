"""Function modes and autocast around a call change neither results nor evidence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import bestof
import bestof.torch as bt
from bestof.selection import Fixed, use_policy
from bestof.selection.state.journal import DisqualificationEntry
from bestof.torch.dispatch.overrides import convolution_override, operation_overrides

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


class Wrong(TorchFunctionMode):
    """Makes every new tensor one of float64."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        return result.double() if function is torch.empty else result


MODES = {"meta": lambda: torch.device("meta"), "a mode of the program": Wrong}
AROUND_GRADIENTS = {**MODES, "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16)}
PASSES = ("as is", "native convgemm", "native winograd4", "im2row", "channels last")


def disqualified() -> list[str]:
    override = convolution_override()
    assert override is not None
    selectors = [selector for selector, _ in override.layer.passes]
    selectors += [one.selector for one in operation_overrides()]
    return [
        entry.alternative
        for selector in selectors
        for entry in selector.journal.entries()
        if isinstance(entry, DisqualificationEntry)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_scripted_module_answers_under_a_mode(mode: str) -> None:
    layer = nn.Conv2d(16, 32, 3, padding=1)
    module = torch.jit.script(layer).eval()  # type: ignore[no-untyped-call]
    x = torch.randn(2, 16, 14, 14)
    expected = module(x).detach()
    bt.enable()
    with MODES[mode](), torch.no_grad():
        for _ in range(150):
            torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-4)
    assert disqualified() == []


@pytest.mark.parametrize("mode", AROUND_GRADIENTS)
@pytest.mark.parametrize("name", PASSES)
def test_a_backward_pass_answers_under_a_mode(mode: str, name: str) -> None:
    layer, x = nn.Conv2d(16, 32, 3, padding=1), torch.randn(2, 16, 14, 14, requires_grad=True)
    ones = torch.ones(2, 32, 14, 14)
    expected = torch.autograd.grad(layer(x), (x, layer.weight), ones)
    use_policy(Fixed(name))
    bt.enable()
    y = layer(x)
    with AROUND_GRADIENTS[mode]():
        gradients = torch.autograd.grad(y, (x, layer.weight), ones)
    for one, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-3, atol=1e-2)
    assert disqualified() == []


@pytest.mark.parametrize("mode", MODES)
def test_maximum_pooling_answers_under_a_mode(mode: str) -> None:
    @torch.jit.script  # type: ignore[misc]
    def pool(x: Tensor) -> Tensor:
        return torch.max_pool2d(x, [2, 2])

    x = torch.randn(2, 32, 64, 64)
    expected = pool(x)
    bestof.use_policy(Fixed("native transposition"))
    bt.enable()
    with MODES[mode]():
        assert torch.equal(pool(x), expected)
    assert disqualified() == []
