"""The group of a layer: which matrix serves which backward pass, and which calls are its trials."""

from __future__ import annotations

import pytest
import torch

import bestof.torch as integration
from bestof.selection.journal import TrialEntry
from bestof.torch.convolution.layer import ConvolutionLayer, LayerProblem
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.enable import convolution_override

WHOLE = (True, True, True)
NOT_BIAS = (True, True, False)


@pytest.fixture
def layer() -> ConvolutionLayer:
    integration.enable()
    override = convolution_override()
    assert override is not None
    return override.layer


def test_a_backward_pass_never_gets_the_matrix_of_an_older_forward_pass(layer: ConvolutionLayer) -> None:
    # After a decision a pass that is still open may be finished by an alternative that its forward did not run.
    x, weight, go = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), torch.randn(1, 3, 3, 3)
    geometry = [1, 1], [0, 0], [1, 1]
    problem = LayerProblem(ConvProblem.of(x, weight, False, *geometry, 1), True, True)
    with torch.no_grad():
        layer._shared_forward(problem, x, weight, None)
        x.data.mul_(2)  # unseen: the version stands still
        layer._independent_forward(problem, x, weight, None)
        got = layer._shared_backward(problem, go, x, weight, "channels_first", NOT_BIAS)
    integration.disable()
    expected = torch.ops.aten.convolution_backward(go, x, weight, None, *geometry, False, [0, 0], 1, NOT_BIAS)
    torch.testing.assert_close(got, expected)
    assert len(layer.kept) == 0


def stages(layer: ConvolutionLayer) -> list[int]:
    return [entry.stage for entry in layer.layer.journal.entries() if isinstance(entry, TrialEntry)]


def test_a_part_of_a_backward_pass_is_no_trial_of_the_group(layer: ConvolutionLayer) -> None:
    x, weight = torch.randn(1, 2, 5, 5, requires_grad=True), torch.randn(3, 2, 3, 3, requires_grad=True)
    out = torch.conv2d(x, weight).sum()
    torch.autograd.grad(out, x, retain_graph=True)
    torch.autograd.grad(out, weight, retain_graph=True)
    assert stages(layer) == [0]
    out.backward()
    assert stages(layer) == [0, 1]


def test_the_bias_does_not_tell_layers_apart_by_whether_it_is_trained(layer: ConvolutionLayer) -> None:
    x, weight, bias = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3, requires_grad=True), torch.randn(3)
    for trained in (False, True):
        torch.conv2d(x, weight, bias.clone().requires_grad_(trained)).sum().backward()
    assert stages(layer) == [0, 1] * 2
    (problem,) = layer.layer.report().problems
    assert problem.problem.endswith("bias threads=1 gradients=w")


def test_problems_that_never_repeat_do_not_pile_up(layer: ConvolutionLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    override = convolution_override()
    assert override is not None
    monkeypatch.setattr("bestof.torch.override._REMEMBERED", 3)
    with torch.no_grad():
        for size in range(5, 15):
            assert torch.conv2d(torch.ones(1, 1, size, size), torch.ones(1, 1, 3, 3)).shape[2] == size - 2
            assert len(override._known.problems) <= 3
