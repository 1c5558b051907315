"""Inference with gradients on: no backward pass ends the passes through a layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bestof.selection.state.journal import TrialEntry
from bestof.torch.dispatch.convolution import forward_only as module
from bestof.torch.dispatch.convolution.forward_only import ForwardOnly
from bestof.torch.dispatch.convolution.layer import ConvolutionLayer
from bestof.torch.ops.convolution.problem import ConvProblem, LayerProblem

CALLS = module._FORWARD_CALLS


def operands() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        torch.randn(2, 4, 8, 8, requires_grad=True),
        torch.randn(4, 4, 3, 3, requires_grad=True),
    )


def problem_of(x: Tensor, weight: Tensor) -> LayerProblem:
    return LayerProblem(ConvProblem.of(x, weight, False, [1, 1], [0, 0], [1, 1], 1), True, True)


def trials_of_the_group(layer: ConvolutionLayer) -> int:
    return sum(isinstance(entry, TrialEntry) for entry in layer.layer.journal.entries())


def test_a_layer_without_backward_passes_settles_by_its_forward_pass(
    layer: ConvolutionLayer,
) -> None:
    x, weight = operands()
    problem = problem_of(x, weight)
    expected = torch.conv2d(x.double(), weight.double())
    for call in range(CALLS):
        assert problem not in layer.forward_only, call
        torch.conv2d(x, weight)
    assert problem in layer.forward_only
    before = trials_of_the_group(layer)
    for _ in range(300):
        torch.testing.assert_close(torch.conv2d(x, weight).double(), expected, rtol=0, atol=1e-4)
    assert trials_of_the_group(layer) == before
    assert layer.layer.chosen(problem) is None
    assert layer.forward_pass.chosen(problem.convolution) is not None
    assert not layer.decisions.is_forward_open(problem, problem.convolution)


def test_a_backward_pass_lets_the_group_choose_again(layer: ConvolutionLayer) -> None:
    x, weight = operands()
    problem = problem_of(x, weight)
    for _ in range(CALLS + 200):
        out = torch.conv2d(x, weight)
    assert problem in layer.forward_only
    wide = [one.detach().double().requires_grad_() for one in (x, weight)]
    expected = torch.autograd.grad(torch.conv2d(*wide).square().sum(), wide)
    got = torch.autograd.grad(out.square().sum(), (x, weight))
    for one, want in zip(got, expected, strict=True):
        torch.testing.assert_close(one.double(), want, rtol=1e-4, atol=1e-3)
    assert problem not in layer.forward_only
    for _ in range(200):
        torch.conv2d(x, weight).sum().backward()
        if layer.layer.chosen(problem) is not None:
            break
    assert layer.layer.chosen(problem) is not None


def test_training_is_never_taken_for_inference(layer: ConvolutionLayer) -> None:
    x, weight = operands()
    problem = problem_of(x, weight)
    for _ in range(3 * CALLS):
        torch.conv2d(x, weight).sum().backward()
        assert problem not in layer.forward_only


def test_shapes_that_never_return_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 3)
    x, weight = operands()
    first, noted = problem_of(x, weight), ForwardOnly()
    for size in range(10):
        noted.note_forward(first._replace(convolution=first.convolution._replace(groups=size)))
        assert len(noted._waiting) <= 3
