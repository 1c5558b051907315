"""Calls that look like one before them, for which PyTorch as is was chosen: what spares them the look-ups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import bestof.torch as integration
from bestof.selection import Fixed, use_policy
from bestof.selection.journal import DisqualificationEntry
from bestof.selection.policy import Search
from bestof.torch.convolution.layer import _ASKED_EVERY
from bestof.torch.enable import convolution_override
from bestof.torch.override import ConvolutionOverride


class AsIs:
    def start(self, alternatives: Sequence[str]) -> Search:
        return Fixed("as is" if "as is" in alternatives else "independent").start(alternatives)


@pytest.fixture
def override() -> ConvolutionOverride:
    use_policy(AsIs())
    integration.enable()
    found = convolution_override()
    assert found is not None
    return found


def operands(groups: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 4, 6, 6, requires_grad=True), torch.randn(4, 4 // groups, 3, 3, requires_grad=True)
    return x, weight, torch.randn(4, requires_grad=True)


def asked(override: ConvolutionOverride) -> int:
    return sum(selector.settled_calls for selector, _ in override.layer.passes)


def test_they_are_known_by_what_they_look_like(override: ConvolutionOverride) -> None:
    x, weight, bias = (one.detach() for one in operands())
    halves = operands(2)[1].detach()
    calls: list[Callable[[], Tensor]] = [
        lambda: torch.conv2d(x, weight, bias),
        lambda: torch.conv2d(x, weight),
        lambda: torch.conv2d(x, weight, bias, padding=1),
        lambda: torch.conv2d(x, weight, bias, 2),
        lambda: torch.conv2d(x, halves, bias, groups=2),
        lambda: torch.conv2d(x.contiguous(memory_format=torch.channels_last), weight, bias),
        lambda: torch.conv2d(x.double(), weight.double(), bias.double()),
    ]
    integration.disable()
    expected = [call() for call in calls]
    integration.enable()
    for _ in range(3):  # each decision empties the table
        assert all(torch.equal(call(), right) for call, right in zip(calls, expected, strict=True))
    assert len(override.layer.direct) == len(calls)
    assert all(found.chosen for found in override.layer.direct.values())


def test_they_give_what_pytorch_gives_and_are_all_counted(override: ConvolutionOverride) -> None:
    operand = operands()
    integration.disable()
    expected = torch.conv2d(*operand)
    wanted = torch.autograd.grad(expected.square().sum(), operand)
    integration.enable()
    calls = 3 * _ASKED_EVERY
    for _ in range(calls):
        result = torch.conv2d(*operand)
        assert torch.equal(result, expected)
        torch.testing.assert_close(torch.autograd.grad(result.square().sum(), operand), wanted)
    assert len(override.layer.direct) == 2
    totals = [sum(counts.totals().values()) for _, counts in override.layer.passes]
    assert totals == [calls] * 3
    assert asked(override) >= 2 * len(totals)  # now and then, so that they notice when it becomes slower


def test_half_a_backward_pass_is_no_whole_one(override: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    for _ in range(3):
        torch.autograd.grad(torch.conv2d(x, weight, bias).sum(), (x, weight, bias))
        (half,) = torch.autograd.grad(torch.conv2d(x, weight, bias).sum(), x)
        (frozen,) = torch.autograd.grad(torch.conv2d(x, weight.detach(), bias).sum(), x)
        assert torch.equal(half, frozen)
    masks = {seen[3] for seen in override.layer.direct if len(seen) > 3}  # type: ignore[arg-type, index]
    assert masks == {(True, True, True), (True, False, False)}


def test_a_decision_that_falls_is_forgotten_at_once(override: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        for _ in range(3):
            torch.conv2d(x, weight, bias)
        (found,) = override.layer.direct.values()
        before = override.layer.direct
        listen = override.layer._listener("convolution forward")
        listen(DisqualificationEntry(found.problem, "as is", "raised"))
        assert override.layer.direct == {}
        torch.conv2d(x, weight, bias)
        assert override.layer.direct == {}
        assert len(before) == 1  # who reads the old table at that moment ends as it began


def test_another_accuracy_or_the_deterministic_mode_is_another_call(override: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        for _ in range(3):
            torch.conv2d(x, weight, bias)
        count = sum(override.layer.forward_calls.totals().values())
        integration.enable({"kernel": {"accuracy": "exact"}})
        torch.conv2d(x, weight, bias)
        integration.enable()
        torch.use_deterministic_algorithms(True)
        try:
            torch.conv2d(x, weight, bias)
        finally:
            torch.use_deterministic_algorithms(False)
        assert sum(override.layer.forward_calls.totals().values()) == count
        integration.enable({"kernel": {"accuracy": "relaxed"}})
        torch.conv2d(x, weight, bias)
        assert {problem.accuracy for problem in override.layer.forward_calls.totals()} == {"float32", "relaxed"}


@pytest.mark.filterwarnings("ignore:.*previously registered kernel")
def test_a_kernel_of_somebody_else_stays_the_original() -> None:
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    met = []
    own = torch.library.get_kernel("aten::convolution", "CPU").call_boxed
    keyset = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def kernel(*given: object) -> object:
        met.append(len(given))
        return own(keyset, *given)

    library.impl("convolution", kernel, "CPU")
    try:
        use_policy(AsIs())
        integration.enable()
        x, weight, bias = operands()
        with torch.no_grad():
            for _ in range(4):
                torch.conv2d(x, weight, bias)
        assert met == [9] * 4
        integration.disable()
    finally:
        library._destroy()
