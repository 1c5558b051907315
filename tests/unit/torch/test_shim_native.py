"""Convolutions for which a native kernel was chosen: the shim runs it without Python."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from shim_case import lookups
from torch import Tensor, nn

import bestof.torch as integration
from bestof import kernels
from bestof.selection import Fixed, use_policy
from bestof.selection.policies.policy import Search
from bestof.torch.backends.shim import ASKED_EVERY
from bestof.torch.dispatch.convolution.override import ConvolutionOverride
from bestof.torch.dispatch.overrides import convolution_override

LAST = torch.channels_last


class Native:
    """The first of these that there is; PyTorch as is for other passes, which do not have them."""

    def __init__(self, *wanted: str) -> None:
        self.wanted = (*(f"native {name}" for name in wanted), "independent", "as is")

    def start(self, alternatives: Sequence[str]) -> Search:
        return Fixed(next(name for name in self.wanted if name in alternatives)).start(alternatives)


def enable(*wanted: str) -> ConvolutionOverride:
    use_policy(Native(*wanted))
    integration.enable({"kernel": {"accuracy": "relaxed"}})
    override = convolution_override()
    assert override is not None
    assert override.is_shim_in
    return override


def settled(
    call: Callable[[], Tensor], override: ConvolutionOverride, patch: pytest.MonkeyPatch
) -> Tensor:
    """What the shim answers, and Python never sees."""
    for _ in range(3):
        call()
    with patch.context() as inside:
        met = lookups(override, inside)
        answer = call()
        assert met == []
    return answer


def case(name: str) -> tuple[Tensor, Tensor, Tensor | None, dict[str, Any]]:
    torch.manual_seed(0)
    x, w, bias = torch.randn(2, 6, 9, 7), torch.randn(10, 6, 3, 3), torch.randn(10)
    return {
        "channels first": (x, w, bias, {"padding": 1}),
        "channels last": (
            x.contiguous(memory_format=LAST),
            w.contiguous(memory_format=LAST),
            bias,
            {"padding": 1},
        ),
        "channels last by its weight": (x, w.contiguous(memory_format=LAST), bias, {}),
        "channels last by its input": (x.contiguous(memory_format=LAST), w, None, {}),
        "stride, dilation": (x, w, bias, {"stride": (2, 1), "dilation": (1, 2), "padding": (2, 0)}),
        "groups": (x, w[:, :3].contiguous(), None, {"groups": 2}),
        "depthwise": (x, w[:6, :1].contiguous(), bias[:6].clone(), {"groups": 6, "padding": 1}),
        "1x1": (x, w[:, :, :1, :1].contiguous(), bias, {}),
        "one pixel": (x[:, :, :1, :1].contiguous(), w[:, :, :1, :1].contiguous(), bias, {}),
        "one channel": (x[:, :1].contiguous(), w[:, :1].contiguous(), bias, {}),
        "one filter": (x, w[:1].clone(), bias[:1].clone(), {}),
        "a view": (x[1:], w[2:], bias[2:], {}),
    }[name]


CASES = (
    *(
        "channels first",
        "channels last",
        "channels last by its weight",
        "channels last by its input",
    ),
    *(
        "stride, dilation",
        "groups",
        "depthwise",
        "1x1",
        "one pixel",
        "one channel",
        "one filter",
        "a view",
    ),
)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("algorithm", ["direct", "convgemm", "winograd4", "depthwise"])
@pytest.mark.parametrize("name", CASES)
def test_they_give_the_same_as_python(
    name: str, algorithm: str, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias, geometry = case(name)
    if not frozen:
        x, weight = x.requires_grad_(), weight.requires_grad_()
    override = enable(algorithm, "convgemm")
    call = lambda: torch.conv2d(x, weight, bias, **geometry)  # noqa: E731
    with torch.set_grad_enabled(not frozen):
        by_python = call().detach()
        answer = settled(call, override, monkeypatch)
    assert torch.equal(answer, by_python)
    assert answer.stride() == by_python.stride()
    assert answer.requires_grad is not frozen
    integration.disable()
    right = torch.conv2d(
        x.double(), weight.double(), None if bias is None else bias.double(), **geometry
    )
    torch.testing.assert_close(answer.double(), right, rtol=1e-4, atol=1e-4)


def test_their_results_are_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, geometry = case("channels first")
    override = enable("winograd4")
    with torch.no_grad():
        right = settled(lambda: torch.conv2d(x, weight, bias, **geometry), override, monkeypatch)
        for _ in range(3):
            poison = torch.full_like(right, float("nan"))
            del poison  # what is allocated next
            assert torch.equal(torch.conv2d(x, weight, bias, **geometry), right)


def test_they_are_counted_and_python_is_asked_now_and_then() -> None:
    x, weight, bias, geometry = case("channels first")
    override = enable("winograd4")
    with torch.no_grad():
        for _ in range(3 * ASKED_EVERY):
            torch.conv2d(x, weight, bias, **geometry)
    assert list(override.layer.forward_calls.totals().values()) == [3 * ASKED_EVERY]
    assert 2 <= override.layer.forward_pass.settled_calls <= 5


def test_weights_that_change_are_packed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, geometry = case("channels first")
    override = enable("winograd4")
    with torch.no_grad():
        call = lambda: torch.conv2d(x, weight, bias, **geometry)  # noqa: E731
        before = settled(call, override, monkeypatch)
        weight.data.view(-1)[7] += 1.0
        after = call()
        assert not torch.equal(before, after)
        assert torch.equal(settled(call, override, monkeypatch), after)
        weight.data = torch.zeros_like(weight)
        assert torch.equal(call(), bias.reshape(1, -1, 1, 1).expand_as(after))


def test_other_weights_of_the_same_shape_have_their_own() -> None:
    x, weight, _, geometry = case("channels first")
    weights = [weight * factor for factor in (1.0, 2.0, 4.0)]
    override = enable("winograd4")
    with torch.no_grad():
        first = [torch.conv2d(x, one, **geometry) for one in weights]
        for _ in range(4):
            for one, right in zip(weights, first, strict=True):
                assert torch.equal(torch.conv2d(x, one, **geometry), right)
    assert len(override.originals.packed) == 3


def test_the_same_memory_read_otherwise_is_another_weight() -> None:
    x, weight, _, geometry = case("channels first")
    flat = weight.reshape(-1)
    other = flat.as_strided(weight.shape, weight.contiguous(memory_format=LAST).stride())
    enable("winograd4")
    with torch.no_grad():
        rights = [torch.conv2d(x, weight, **geometry), torch.conv2d(x, other.clone(), **geometry)]
        for _ in range(4):
            torch.testing.assert_close(torch.conv2d(x, weight, **geometry), rights[0])
            torch.testing.assert_close(torch.conv2d(x, other, **geometry), rights[1])


def test_packed_weights_leave_with_their_weights() -> None:
    x, weight, _, geometry = case("channels first")
    override = enable("winograd4")
    with torch.no_grad():
        for _ in range(4):
            torch.conv2d(x, weight, **geometry)
    ((_, kept),) = override.originals.packed._kept.items()
    packed = kept.value
    del kept
    held = sys.getrefcount(packed)
    del weight
    assert len(override.originals.packed) == 0
    assert sys.getrefcount(packed) == held - 2  # what was kept, and what was lent


@pytest.mark.parametrize("leave", ["disable", "no memory", "another level"])
def test_nothing_is_lent_after(leave: str) -> None:
    x, weight, _, geometry = case("channels first")
    override = enable("winograd4")
    with torch.no_grad():
        for _ in range(4):
            torch.conv2d(x, weight, **geometry)
        ((_, kept),) = override.originals.packed._kept.items()
        packed = kept.value
        del kept
        if leave == "disable":
            integration.disable()
        elif leave == "no memory":
            integration.enable({"kernel": {"accuracy": "relaxed", "packed_mib": 0}})
        else:
            integration.enable({"kernel": {"accuracy": "exact"}})
            override.originals.packed.clear()
        assert sys.getrefcount(packed) == 2
        integration.disable()
        right = torch.conv2d(x, weight, **geometry)
        integration.enable({"kernel": {"accuracy": "relaxed", "packed_mib": 0}})
        for _ in range(4):
            torch.testing.assert_close(
                torch.conv2d(x, weight, **geometry), right, rtol=1e-4, atol=1e-4
            )


def test_what_they_cannot_take_is_answered_all_the_same() -> None:
    x, weight, bias, geometry = case("channels first")
    enable("winograd4")
    wide = torch.randn(2, 6, 9, 14)
    spread = torch.stack([bias, bias], 1)[:, 0]
    calls = [
        lambda: torch.conv2d(wide[..., ::2], weight, bias, **geometry),
        lambda: torch.conv2d(x, weight, spread, **geometry),
        lambda: torch.conv2d(x.transpose(2, 3), weight, bias, **geometry),
        lambda: torch.conv2d(x, weight.flip(0).transpose(2, 3), bias, **geometry),
    ]
    integration.disable()
    right = [call() for call in calls]
    enable("winograd4")
    with torch.no_grad():
        for _ in range(4):
            torch.conv2d(x, weight, bias, **geometry)
            for call, expected in zip(calls, right, strict=True):
                torch.testing.assert_close(call(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bias", [torch.randn(10).double(), torch.randn(9), torch.randn(10, 1)])
def test_arguments_that_pytorch_refuses_are_refused(
    bias: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, good, geometry = case("channels first")
    integration.disable()
    with pytest.raises(RuntimeError) as expected:
        torch.conv2d(x, weight, bias, **geometry)
    override = enable("winograd4")
    with torch.no_grad():
        settled(lambda: torch.conv2d(x, weight, good, **geometry), override, monkeypatch)
        with pytest.raises(RuntimeError) as met:
            torch.conv2d(x, weight, bias, **geometry)
    assert str(met.value) == str(expected.value)


def test_deterministic_programs_get_pytorch_as_is(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, geometry = case("channels first")
    integration.disable()
    right = torch.conv2d(x, weight, bias, **geometry)
    override = enable("winograd4")
    with torch.no_grad():
        ours = settled(lambda: torch.conv2d(x, weight, bias, **geometry), override, monkeypatch)
        assert not torch.equal(ours, right)
        torch.use_deterministic_algorithms(True)
        try:
            assert torch.equal(torch.conv2d(x, weight, bias, **geometry), right)
        finally:
            torch.use_deterministic_algorithms(False)


def test_gradients_flow_through_them(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = [
        one.double().requires_grad_() for one in case("channels first")[:3] if one is not None
    ]
    right = torch.autograd.grad(torch.conv2d(*operands, padding=1).square().sum(), operands)
    override = enable("winograd4")
    ours = [one.detach().float().requires_grad_() for one in operands]
    settled(lambda: torch.conv2d(*ours, padding=1), override, monkeypatch)
    met = torch.autograd.grad(torch.conv2d(*ours, padding=1).square().sum(), ours)
    for one, other in zip(met, right, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)


def test_another_instruction_set_packs_anew() -> None:
    x, weight, _, geometry = case("channels first")
    usual = kernels.isa()
    enable("winograd4")
    with torch.no_grad():
        right = [torch.conv2d(x, weight, **geometry) for _ in range(4)][-1]
        kernels.use_isa("baseline")
        try:
            for _ in range(3):
                torch.testing.assert_close(
                    torch.conv2d(x, weight, **geometry), right, rtol=1e-4, atol=1e-4
                )
        finally:
            kernels.use_isa(usual)


def test_threads_share_them_while_weights_come_and_go() -> None:
    override = enable("winograd4", "convgemm")
    wrong: list[float] = []

    def work(seed: int) -> None:
        torch.manual_seed(seed)
        x = torch.randn(1, 6, 9, 7)
        with torch.no_grad():
            for turn in range(60):
                layer = nn.Conv2d(6, 10, 3, padding=1)
                first = layer(x)
                for _ in range(6):
                    if turn % 7 == seed % 7:
                        override.originals.packed.clear()
                    wrong.append(float((layer(x) - first).abs().max()))
                layer.weight.data.mul_(2.0)
                wrong.append(
                    float(
                        (
                            layer(x)
                            - layer.bias.reshape(1, -1, 1, 1)
                            - 2 * (first - layer.bias.reshape(1, -1, 1, 1))
                        )
                        .abs()
                        .max()
                    )
                )

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 4 * 60 * 7
    assert max(wrong) < 1e-4
