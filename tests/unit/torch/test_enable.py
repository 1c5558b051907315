"""Switching on and off: which kernels are in PyTorch's dispatcher."""

from __future__ import annotations

import pytest
import torch

import bestof.torch as integration
from bestof.errors import TorchError
from bestof.torch.dispatch.overrides import convolution_override, convolution_overrides
from bestof.torch.enable import _State, order_accuracy

NAMES = ("aten::convolution", "aten::convolution_backward")


def is_on() -> bool:
    """Whether our kernels are in, as the dispatcher tells; and that a call really meets them, or
    does not."""
    has = {torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU") for name in NAMES}
    assert len(has) == 1
    override = convolution_override()
    before = 0 if override is None else sum(override.layer.forward_calls.totals().values())
    torch.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))
    after = 0 if override is None else sum(override.layer.forward_calls.totals().values())
    assert (after > before) == has.copy().pop()
    return has.pop()


def test_enable_and_disable_twice_are_as_once() -> None:
    assert not is_on()
    integration.enable()
    integration.enable()
    assert is_on()
    integration.disable()
    assert not is_on()
    integration.disable()
    assert not is_on()
    integration.enable()
    assert is_on()


def test_the_override_is_kept_after_disable() -> None:
    integration.enable()
    first = convolution_override()
    integration.disable()
    with integration.enabled():
        assert convolution_override() is first


def test_blocks_nest() -> None:
    with integration.enabled():
        with integration.enabled():
            assert is_on()
        assert is_on()
    assert not is_on()


def test_a_block_inside_enable_leaves_it_on() -> None:
    integration.enable()
    with integration.enabled():
        assert is_on()
    assert is_on()


def test_enable_inside_a_block_outlives_it() -> None:
    with integration.enabled():
        integration.enable()
    assert is_on()


def test_disable_inside_blocks_holds_for_all_of_them() -> None:
    with integration.enabled():
        with integration.enabled():
            integration.disable()
            assert not is_on()
        assert not is_on()
    assert not is_on()


def test_a_block_that_was_disabled_does_not_end_a_later_one() -> None:
    first, second = integration.enabled(), integration.enabled()
    first.__enter__()
    integration.disable()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_on()
    second.__exit__(None, None, None)
    assert not is_on()


def test_an_exception_ends_a_block() -> None:
    with pytest.raises(KeyError, match="mine"), integration.enabled():
        raise KeyError("mine")
    assert not is_on()


def test_a_pytorch_without_get_kernel_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.library, "get_kernel")
    with pytest.raises(
        TorchError, match=r"has no torch\.library\.get_kernel.*install torch 2\.13"
    ) as caught:
        integration.enable()
    assert "\n" not in str(caught.value)
    assert not is_on()
    with pytest.raises(TorchError), integration.enabled():
        pytest.fail("the block must not be entered")
    assert not is_on()


def test_an_ordered_accuracy_overrides_the_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_State, "ordered", None)
    configured = []
    integration.enable()
    override = convolution_override()
    assert override is not None
    monkeypatch.setattr(
        type(override), "configure", lambda self, one: configured.append(one.accuracy)
    )
    order_accuracy("exact")
    integration.enable()
    with integration.enabled({"kernel": {"accuracy": "relaxed"}}):
        pass
    # Four times, on each kind of device that this PyTorch was built for.
    assert configured == ["exact"] * 4 * len(convolution_overrides())
