"""The group of a layer: which matrix serves which backward pass, and which calls are trials."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from choices import Choices, choose

import bestof.torch as integration
from bestof.selection import Fixed, use_policy
from bestof.selection.policies.policy import Search
from bestof.selection.state.journal import DisqualificationEntry, TrialEntry
from bestof.torch.backends.shim import ASKED_EVERY
from bestof.torch.dispatch.convolution.layer import ConvolutionLayer
from bestof.torch.dispatch.overrides import convolution_override
from bestof.torch.ops.convolution import estimate
from bestof.torch.ops.convolution.problem import ConvProblem, LayerProblem, parse_conv
from bestof.torch.ops.convolution.whole_layer import computes_jointly
from bestof.torch.ops.memory_format import Layout

WHOLE = (True, True, True)
NOT_BIAS = (True, True, False)


def test_a_backward_pass_never_gets_the_matrix_of_an_older_forward_pass(
    layer: ConvolutionLayer,
) -> None:
    # After a decision a pass that is still open may be finished by an alternative that its forward
    # did not run.
    x, weight, go = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), torch.randn(1, 3, 3, 3)
    geometry = [1, 1], [0, 0], [1, 1]
    problem = LayerProblem(ConvProblem.of(x, weight, False, *geometry, 1), True, True)
    with torch.no_grad():
        layer._shared_forward(problem, x, weight, None)
        x.data.mul_(2)  # unseen: the version stands still
        layer._independent_forward(problem, x, weight, None)
        got = layer._shared_backward(problem, go, x, weight, "channels_first", NOT_BIAS)
    integration.disable()
    expected = torch.ops.aten.convolution_backward(
        go, x, weight, None, *geometry, False, [0, 0], 1, NOT_BIAS
    )
    torch.testing.assert_close(got, expected)
    assert len(layer.kept) == 0


def stages(layer: ConvolutionLayer) -> list[int]:
    return [entry.stage for entry in layer.layer.journal.entries() if isinstance(entry, TrialEntry)]


def test_a_part_of_a_backward_pass_is_no_trial_of_the_group(layer: ConvolutionLayer) -> None:
    x, weight = (
        torch.randn(1, 2, 5, 5, requires_grad=True),
        torch.randn(3, 2, 3, 3, requires_grad=True),
    )
    out = torch.conv2d(x, weight).sum()
    torch.autograd.grad(out, x, retain_graph=True)
    torch.autograd.grad(out, weight, retain_graph=True)
    assert stages(layer) == [0]
    out.backward()
    assert stages(layer) == [0, 1]


def test_the_bias_does_not_tell_layers_apart_by_whether_it_is_trained(
    layer: ConvolutionLayer,
) -> None:
    x, weight, bias = (
        torch.randn(1, 2, 5, 5),
        torch.randn(3, 2, 3, 3, requires_grad=True),
        torch.randn(3),
    )
    for trained in (False, True):
        torch.conv2d(x, weight, bias.clone().requires_grad_(trained)).sum().backward()
    assert stages(layer) == [0, 1] * 2
    (problem,) = layer.layer.report().problems
    assert problem.problem.endswith("bias threads=1 gradients=w")


def test_problems_that_never_repeat_do_not_pile_up(
    layer: ConvolutionLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bestof.torch.dispatch.convolution.layer._REMEMBERED", 3)
    with torch.no_grad():
        for size in range(5, 15):
            assert (
                torch.conv2d(torch.ones(1, 1, size, size), torch.ones(1, 1, 3, 3)).shape[2]
                == size - 2
            )
            assert len(layer._forward) <= 3


class Order:
    """Decides for what is ordered, and in the group of a layer for independent passes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def start(self, alternatives: Sequence[str]) -> Search:
        return Fixed(self._name if self._name in alternatives else "independent").start(
            alternatives
        )


def settled(
    layer: ConvolutionLayer, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> None:
    for _ in range(100):
        torch.conv2d(x, weight, bias).sum().backward()
        if all(problem.settled for problem in layer.layer.report().problems):
            return
    pytest.fail("nothing was settled")


def counting(layer: ConvolutionLayer) -> list[tuple[bool, ...]]:
    """The masks of the calls of PyTorch's own backward kernel from now on."""
    masks: list[tuple[bool, ...]] = []
    original = layer._originals.convolution_backward

    def counted(*args: object) -> object:
        masks.append(tuple(args[-1]))  # type: ignore[arg-type]
        return original(*args)

    for one in layer.parts:
        object.__setattr__(one.original, "convolution_backward", counted)
    return masks


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, weight = (
        torch.randn(2, 4, 8, 8, requires_grad=True),
        torch.randn(4, 4, 3, 3, requires_grad=True),
    )
    return x, weight, torch.randn(4, requires_grad=True)


def gradients(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
    return list(
        torch.autograd.grad(torch.conv2d(x, weight, bias).square().sum(), [x, weight, bias])
    )


def test_where_pytorch_wins_both_gradients_one_call_computes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "bestof.torch.dispatch.convolution.override.make_operators", lambda *_: None
    )  # it would not tell
    operand = operands()
    expected = gradients(*operand)
    use_policy(Order("as is"))
    integration.enable()
    override = convolution_override()
    assert override is not None
    layer = override.layer
    settled(layer, *operand)
    masks = counting(layer)
    before = sum(layer.weight_gradient_calls.totals().values())
    for _ in range(2 * ASKED_EVERY):
        # A bias gradient sums 72 terms of about 10 each, which may cancel. Computed apart it is
        # summed in another order: both sums err by about u * 720 = 4e-5.
        torch.testing.assert_close(gradients(*operand), expected, rtol=1e-5, atol=1e-4)
    assert masks.count((True, True, True)) == 2 * ASKED_EVERY - 2
    assert masks.count((True, False, False)) == masks.count((False, True, False)) == 2
    assert sum(layer.weight_gradient_calls.totals().values()) - before == 2 * ASKED_EVERY


def test_where_another_wins_a_gradient_they_are_computed_apart() -> None:
    operand = operands()
    expected = gradients(*operand)
    use_policy(Order("im2row"))
    integration.enable()
    override = convolution_override()
    assert override is not None
    settled(override.layer, *operand)
    gradients(*operand)  # the first results of these problems are compared with PyTorch's
    masks = counting(override.layer)
    torch.testing.assert_close(gradients(*operand), expected, rtol=1e-4, atol=1e-4)
    assert masks == []


@pytest.mark.usefixtures("known_onednn")
@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.bfloat16, True), (torch.float32, True), (torch.float32, False)]
)
def test_layers_whose_passes_win_little_are_judged_as_a_whole_too(
    dtype: torch.dtype, near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not near:
        monkeypatch.setattr(estimate, "JOINT_MARGIN", 0.5)

    class ByParts:
        """Decides for channels last in the passes, and for the first that applies in the group."""

        def start(self, alternatives: Sequence[str]) -> Search:
            return Fixed("channels last" if "channels last" in alternatives else "joint").start(
                alternatives
            )

    x, weight, bias = (one.detach().to(dtype).requires_grad_() for one in operands())
    expected = gradients(x, weight, bias)
    use_policy(ByParts())
    integration.enable()
    override = convolution_override()
    assert override is not None
    layer = override.layer
    settled(layer, x, weight, bias)
    out = torch.conv2d(x, weight, bias).sum()
    torch.autograd.grad(
        out, x, retain_graph=True
    )  # part of a backward pass is nothing of the group's
    torch.autograd.grad(out, weight)
    (group,) = layer.layer.report().problems
    assert group.decision == ("joint" if near else "independent")
    masks = counting(layer)
    asked = layer.layer.settled_calls
    met = sum(layer.layer_calls.totals().values())
    for _ in range(2 * ASKED_EVERY):
        torch.testing.assert_close(gradients(x, weight, bias), expected, rtol=2**-6, atol=2**-4)
    assert sum(layer.layer_calls.totals().values()) == met + 2 * ASKED_EVERY
    if near:  # now and then, forward and backward, to see how long it takes
        assert layer.layer.settled_calls - asked == 4
    apart = {(True, False, False), (False, True, False)}
    assert set(masks) == ({WHOLE} if near else apart)
    rows = [row for row in integration.summary().passes if row.name != "forward"]
    assert {row.chosen for row in rows} == {"as is" if near else "channels last"}
    # Of one gradient there is nothing to compute jointly.
    torch.autograd.grad(torch.conv2d(x, weight.detach(), bias).sum(), x)
    assert masks[-1] == (True, False, False)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_a_layer_that_winograd_is_far_ahead_on_costs_no_trial_as_a_whole(layout: Layout) -> None:
    def jointly(notation: str, **changes: object) -> bool:
        problem = parse_conv(notation)._replace(
            input_layout=layout, weight_layout=layout, **changes
        )  # type: ignore[arg-type]
        return computes_jointly(LayerProblem(problem, True, True))

    assert not any(
        map(
            jointly,
            ("i64x32x32,k64x3x3,b64,p1", "i256x14x14,k256x3x3,b8,p1", "i512x2x2,k512x3x3,b64,p1"),
        )
    )
    assert all(
        map(
            jointly,
            ("i512x2x2,k512x3x3,b8,p1", "i128x8x8,k256x3x3,b8,s2,p1", "i64x16x16,k128x1x1,b8,s2"),
        )
    )
    assert jointly("i64x32x32,k64x3x3,b64,p1", dtype="bfloat16")
    assert not jointly("i512x2x2,k512x3x3,b8,p1", device="cuda")


def test_a_withdrawn_pair_is_no_longer_computed_jointly(layer: ConvolutionLayer) -> None:
    x, weight = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    convolution = ConvProblem.of(x, weight, False, [1, 1], [0, 0], [1, 1], 1)
    problem, whole = (
        convolution._replace(grad_layout="channels_first"),
        LayerProblem(convolution, True, True),
    )

    def is_joint() -> bool:
        found = layer.find_backward("look", lambda: (whole, "channels_first", WHOLE))
        assert found is not None
        return next(found.turns)

    passes = [Choices({problem: "as is"}) for _ in range(2)]
    layer.decisions = choose(
        layer.decisions,
        layer=Choices({whole: "independent"}),
        input_gradient=passes[0],
        weight_gradient=passes[1],
    )
    assert is_joint()
    passes[0].clear()
    layer._listen(DisqualificationEntry(problem, "as is", "raised"))
    assert not is_joint()


def test_where_pytorch_wins_the_forward_pass_its_kernel_is_called_at_once() -> None:
    x, weight, bias = operands()
    use_policy(Order("as is"))
    integration.enable()
    override = convolution_override()
    assert override is not None
    layer = override.layer
    expected = torch.conv2d(x, weight, bias)
    settled(layer, x, weight, bias)
    calls = layer.forward_pass.settled_calls
    for _ in range(2 * ASKED_EVERY):
        torch.testing.assert_close(torch.conv2d(x, weight, bias), expected)
    assert layer.forward_pass.settled_calls - calls == 2
    with torch.no_grad():
        torch.conv2d(x, weight, bias)
        calls = layer.forward_pass.settled_calls
        for _ in range(2 * ASKED_EVERY):
            torch.testing.assert_close(torch.conv2d(x, weight, bias), expected)
    assert layer.forward_pass.settled_calls - calls == 2
    assert {count for problem, count in layer.forward_calls.totals().items() if problem.frozen} == {
        2 * ASKED_EVERY + 1
    }
