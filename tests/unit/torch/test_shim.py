"""The shim answers and counts convolutions of PyTorch's own kernel without entering Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from choices import Choices, choose
from shim_case import either, lookups, operands, override
from torch import Tensor

import bestof.torch as integration
from bestof.selection import BestOf
from bestof.selection.state.journal import DisqualificationEntry
from bestof.torch.backends.shim import ASKED_EVERY
from bestof.torch.dispatch.convolution import override as overriding
from bestof.torch.dispatch.convolution.override import ConvolutionOverride

__all__ = ["either", "override"]  # fixtures


def test_they_are_known_by_what_they_look_like(
    override: ConvolutionOverride, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = (one.detach() for one in operands())
    halves = operands(2)[1].detach()
    calls: list[Callable[[], Tensor]] = [
        lambda: torch.conv2d(x, weight, bias),
        lambda: torch.conv2d(x, weight),
        lambda: torch.conv2d(x, weight, bias, padding=1),
        lambda: torch.conv2d(x, weight, bias, padding=(1, 0)),
        lambda: torch.conv2d(x, weight, bias, 2),
        lambda: torch.conv2d(x, weight, bias, dilation=2),
        lambda: torch.conv2d(x, halves, bias, groups=2),
        lambda: torch.conv2d(x[:1], weight, bias),
        lambda: torch.conv2d(x.contiguous(memory_format=torch.channels_last), weight, bias),
        lambda: torch.conv2d(x.double(), weight.double(), bias.double()),
    ]
    integration.disable()
    expected = [call() for call in calls]
    integration.enable()
    with torch.no_grad():
        for _ in range(3):  # each decision makes all others forgotten
            assert all(
                torch.equal(call(), right) for call, right in zip(calls, expected, strict=True)
            )
        met = lookups(override, monkeypatch)
        assert all(torch.equal(call(), right) for call, right in zip(calls, expected, strict=True))
    assert met == []
    calls[0]()
    assert len(met) == 1


def test_they_give_what_pytorch_gives_and_are_all_counted(either: ConvolutionOverride) -> None:
    operand = operands()
    integration.disable()
    expected = torch.conv2d(*operand)
    wanted = torch.autograd.grad(expected.square().sum(), operand)
    integration.enable()
    calls = 3 * ASKED_EVERY
    for _ in range(calls):
        result = torch.conv2d(*operand)
        assert torch.equal(result, expected)
        torch.testing.assert_close(torch.autograd.grad(result.square().sum(), operand), wanted)
    totals = [sum(counts.totals().values()) for _, counts in either.layer.passes]
    assert totals == [calls] * 3
    # Now and then, so that they notice when it becomes slower.
    asked = sum(selector.settled_calls for selector, _ in either.layer.passes)
    assert 2 * len(totals) <= asked <= 4 * len(totals)


def test_half_a_backward_pass_is_no_whole_one(either: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    for _ in range(4):
        torch.autograd.grad(torch.conv2d(x, weight, bias).sum(), (x, weight, bias))
        (half,) = torch.autograd.grad(torch.conv2d(x, weight, bias).sum(), x)
        (frozen,) = torch.autograd.grad(torch.conv2d(x, weight.detach(), bias).sum(), x)
        assert torch.equal(half, frozen)


def test_a_decision_that_falls_is_forgotten_at_once(
    override: ConvolutionOverride, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        for _ in range(3):
            torch.conv2d(x, weight, bias)
        met = lookups(override, monkeypatch)
        torch.conv2d(x, weight, bias)
        assert met == []
        (problem,) = override.layer.forward_calls.totals()
        layer = override.layer
        layer.decisions = choose(layer.decisions, forward_pass=Choices())
        layer._listen(DisqualificationEntry(problem, "as is", "raised"))
        for count in (1, 2):
            torch.conv2d(x, weight, bias)
            assert len(met) == count


def test_what_was_looked_up_before_a_decision_is_not_believed(
    override: ConvolutionOverride,
) -> None:
    x, weight, bias = operands()
    found, find = [], override.layer.find_forward

    def late(*met: Any) -> Any:
        known = find(*met)
        assert known is not None
        override.layer.forget()  # by another thread's decision
        found.append(known.chosen)
        return known

    with torch.no_grad():
        for _ in range(3):
            torch.conv2d(x, weight, bias)
        override.layer.forget()
        override.layer.find_forward = late  # type: ignore[method-assign]
        for _ in range(3):
            torch.conv2d(x, weight, bias)
    assert found == [True] * 3


def test_what_was_looked_up_before_a_decision_is_not_remembered(
    either: ConvolutionOverride,
) -> None:
    x, weight, bias = operands()
    layer = either.layer

    def another_decides() -> None:
        layer._listen(DisqualificationEntry("its problem", "as is", "raised"))

    for _ in range(3):
        torch.autograd.grad(torch.conv2d(x, weight, bias).sum(), (x, weight, bias))
    layer.drop_shortcuts()
    decided = {}
    selectors = [name for name, one in layer.decisions._asdict().items() if isinstance(one, BestOf)]
    assert len(selectors) == 4
    for name in selectors:
        decided[name] = Choices(getattr(layer.decisions, name).best_name)
        decided[name].asked = another_decides
    layer.decisions = choose(layer.decisions, **decided)
    torch.autograd.grad(torch.conv2d(x, weight, bias).sum(), (x, weight, bias))
    assert not layer._forward
    assert not layer._backward


def test_what_was_configured_before_a_change_is_not_believed(
    override: ConvolutionOverride, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        for _ in range(3):
            torch.conv2d(x, weight, bias)
        override.layer.forget()
        own = overriding.look_of
        with monkeypatch.context() as patch:
            # Another thread configures after this one has read the level of accuracy.
            patch.setattr(
                overriding, "look_of", lambda *given: (own(*given), override.layer.forget())[0]
            )
            torch.conv2d(x, weight, bias)
        met = lookups(override, monkeypatch)
        torch.conv2d(x, weight, bias)
    assert len(met) == 1


def test_another_accuracy_is_another_call(either: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        for _ in range(3):
            torch.conv2d(x, weight, bias)
        count = sum(either.layer.forward_calls.totals().values())
        integration.enable({"kernel": {"accuracy": "exact"}})
        torch.conv2d(x, weight, bias)
        assert sum(either.layer.forward_calls.totals().values()) == count
        integration.enable({"kernel": {"accuracy": "relaxed"}})
        torch.conv2d(x, weight, bias)
        assert {problem.accuracy for problem in either.layer.forward_calls.totals()} == {
            "float32",
            "relaxed",
        }


def test_another_accuracy_is_counted_apart(either: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        for _ in range(5):
            torch.conv2d(x, weight, bias)
        integration.enable({"kernel": {"accuracy": "relaxed"}})
        for _ in range(ASKED_EVERY):
            torch.conv2d(x, weight, bias)
    counts = {
        problem.accuracy: calls for problem, calls in either.layer.forward_calls.totals().items()
    }
    assert counts == {"float32": 5, "relaxed": ASKED_EVERY}


def test_a_call_without_bias_is_no_call_with_one(either: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        for _ in range(4):
            torch.conv2d(x, weight)
        for _ in range(20):
            torch.conv2d(x, weight, bias)
    assert {
        problem.bias: calls for problem, calls in either.layer.forward_calls.totals().items()
    } == {
        False: 4,
        True: 20,
    }


@pytest.mark.long
def test_what_the_shim_does_not_answer_seldom_asks_the_selectors_either(
    either: ConvolutionOverride,
) -> None:
    """As the first layer of a network, whose input wants no gradient, and what no longer fits into
    the shim's table."""
    x, weight, _ = (one.detach() for one in operands())
    trained = weight.clone().requires_grad_()
    image, pixel = torch.ones(1, 1, 50, 50), torch.ones(1, 1, 1, 1)

    def train() -> None:
        torch.conv2d(x, trained)

    def infer() -> None:
        with torch.no_grad():
            torch.conv2d(image, pixel)

    with torch.no_grad():
        for _ in range(2):  # 2,048 fit
            for height, width in (
                (height, width) for height in range(1, 47) for width in range(1, 47)
            ):
                torch.conv2d(image[..., :height, :width], pixel)
    for call in (train, infer):
        for _ in range(3):
            call()
        asked = sum(selector.settled_calls for selector, _ in either.layer.passes)
        for _ in range(4 * ASKED_EVERY):
            call()
        assert sum(selector.settled_calls for selector, _ in either.layer.passes) - asked == 4


def test_training_is_pythons_while_a_matrix_is_kept(
    override: ConvolutionOverride, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward pass drops the matrix that an older one kept of the same tensor."""
    x, weight, bias = operands()
    for _ in range(3):
        torch.conv2d(x, weight, bias)
    met = lookups(override, monkeypatch)
    torch.conv2d(x, weight, bias)
    assert met == []
    override.layer.kept.keep(x, "some geometry", torch.ones(3))
    torch.conv2d(x, weight, bias)
    assert len(met) == 1
    override.layer.kept.clear()
    torch.conv2d(x, weight, bias)
    assert len(met) == 1
