"""Packed weights that the shim uses without Python."""

from __future__ import annotations

import pytest
import torch
from test_shim_native import case, enable, settled

from bestof import BestOf, kernels


def test_writes_that_a_sum_rounds_away_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, geometry = case("channels first")
    assert bias is not None
    x[:, 0], weight[:, 0] = 0.0, 1e8
    override = enable("winograd4")
    with torch.no_grad():
        settled(lambda: torch.conv2d(x, weight, bias, **geometry), override, monkeypatch)
        weight[:, 1] += 0.01
        answer = torch.conv2d(x, weight, bias, **geometry)
        right = torch.conv2d(x.double(), weight.double(), bias.double(), **geometry)
    torch.testing.assert_close(answer.double(), right, rtol=1e-4, atol=1e-4)


def test_passes_in_training_are_by_the_instruction_set_in_use() -> None:
    x, weight, _, _ = case("channels first")
    x.requires_grad_()
    weight.requires_grad_()
    usual = kernels.isa()
    if usual == "baseline":
        pytest.skip("there is no other one here")
    enable("convgemm")
    for _ in range(4):
        before = torch.conv2d(x, weight)
    kernels.use_isa("baseline")
    try:
        after = torch.conv2d(x, weight)
        assert not torch.equal(after, before)
    finally:
        kernels.use_isa(usual)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_tensors_that_are_copied_on_write_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, geometry = case("channels first")
    override = enable("winograd4")
    with torch.no_grad():
        settled(lambda: torch.conv2d(x, weight, bias, **geometry), override, monkeypatch)
        copy = torch._lazy_clone(x)
        torch.conv2d(copy, weight, bias, **geometry)
    assert torch._C._is_cow_tensor(copy)


def test_the_first_alternative_is_taken_while_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, weight, bias, geometry = case("channels first")
    right = torch.conv2d(x, weight, bias, **geometry)
    override = enable("winograd4")
    with torch.no_grad():
        ours = settled(lambda: torch.conv2d(x, weight, bias, **geometry), override, monkeypatch)
        assert not torch.equal(ours, right)
        BestOf.use_always_the_first_alternative()
        try:
            assert torch.equal(torch.conv2d(x, weight, bias, **geometry), right)
        finally:
            BestOf.use_the_best_alternative()
        assert torch.equal(torch.conv2d(x, weight, bias, **geometry), ours)


def test_selectors_ignore_calls_that_pack() -> None:
    x, weight, bias, geometry = case("channels first")
    override = enable("winograd4")
    with torch.no_grad():
        for _ in range(4):
            torch.conv2d(x, weight, bias, **geometry)
        seen = override.layer.forward_pass.settled_calls
        for _ in range(20):
            weight.mul_(2.0)
            packed = torch.conv2d(x, weight, bias, **geometry)
            torch.testing.assert_close(packed, torch.conv2d(x, weight, bias, **geometry))
    assert override.layer.forward_pass.settled_calls == seen
    assert sum(override.layer.forward_calls.totals().values()) == 44
