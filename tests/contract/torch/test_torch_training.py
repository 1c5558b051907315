"""Training gives the same results while convolutions are chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from tuned_program import CALLS, Prefer, assert_same, assert_unchanged, calls_seen, net, step

import bestof
import bestof.torch as integration
from bestof.torch.dispatch.overrides import _Made, operation_overrides
from bestof.torch.ops.bound import BFLOAT16_INSIDE
from bestof.torch.ops.onednn import has_bfloat16


def test_training_follows_the_same_curve(policy: None) -> None:
    x, y = torch.randn(16, 3, 16, 16), torch.randint(0, 5, (16,))
    x.add_(y.reshape(-1, 1, 1, 1) / 2)

    def losses() -> list[float]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), net(16))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        curve = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        return curve

    expected = losses()
    with integration.enabled():
        got = losses()
    assert expected[-1] < 0.8 * expected[0]
    assert max(abs(a - b) for a, b in zip(got, expected, strict=True)) < 1e-3
    assert calls_seen() > 20 * 3 * 3


def test_a_step_comes_to_the_same(policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    assert_unchanged(lambda: step(model, x))
    assert calls_seen() > 0


@pytest.mark.parametrize("switch", ["exact", "deterministic", "tolerance"])
def test_gradcheck_while_tuning(switch: str, policy: None) -> None:
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    torch.use_deterministic_algorithms(switch == "deterministic")
    try:
        with integration.enabled({"kernel": {"accuracy": "exact"}} if switch == "exact" else None):
            for _ in range(20):
                torch.autograd.gradcheck(
                    functional.conv2d,
                    (x, w),
                    fast_mode=True,
                    nondet_tol=1e-10 if switch == "tolerance" else 0.0,
                )
    finally:
        torch.use_deterministic_algorithms(False)
    assert (calls_seen() > 0) == (switch == "tolerance")


@pytest.mark.parametrize("where", ["input", "weight", "both"])
def test_channels_last(where: str, policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    if where != "weight":
        x = x.contiguous(memory_format=torch.channels_last)
    if where != "input":
        model = model.to(memory_format=torch.channels_last)
    assert_unchanged(lambda: step(model, x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype, policy: None) -> None:
    model, x = net(dtype=dtype), torch.randn(4, 3, 16, 16, dtype=dtype)
    assert_unchanged(lambda: step(model, x))
    assert calls_seen() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype: torch.dtype, policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)

    def compute() -> list[Tensor]:
        with torch.autocast("cpu", dtype=dtype):
            return step(model, x)

    expected = compute()
    with integration.enabled():
        for _ in range(CALLS):
            for got, other in zip(compute(), expected, strict=True):
                assert (got.dtype, got.stride()) == (other.dtype, other.stride())
                # As `assert_same` has it for half types; the gradients of float32 parameters went
                # through it as well.
                torch.testing.assert_close(
                    got, other, rtol=0, atol=6 * torch.finfo(dtype).eps * other.abs().max().item()
                )
    problems = [problem for one in operation_overrides()[:3] for problem in one.calls.totals()]
    assert {problem.dtype for problem in problems} == {str(dtype).removeprefix("torch.")}
    assert all(torch.equal(got, other) for got, other in zip(compute(), expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_training_under_autocast_follows_the_same_curve(dtype: torch.dtype, policy: None) -> None:
    x, y = torch.randn(16, 3, 16, 16), torch.randint(0, 5, (16,))
    x.add_(y.reshape(-1, 1, 1, 1) / 2)

    def losses(*, autocast: bool) -> list[float]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), net(16))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=dtype is torch.float16)
        curve = []
        for _ in range(20):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype, enabled=autocast):
                loss = functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            curve.append(loss.item())
        return curve

    exact, expected = losses(autocast=False), losses(autocast=True)
    with integration.enabled():
        got = losses(autocast=True)
    assert expected[-1] < 0.8 * expected[0]
    # Two ways to round are as far from each other as either is from what needs none.
    rounding = max(abs(a - b) for a, b in zip(expected, exact, strict=True))
    assert rounding > 0
    assert max(abs(a - b) for a, b in zip(got, expected, strict=True)) < 3 * rounding
    assert calls_seen() > 20 * 3 * 3


@pytest.mark.skipif(
    not has_bfloat16(), reason="there are no instructions that pay for bfloat16 here"
)
def test_relaxed_accuracy_may_compute_in_bfloat16() -> None:
    bestof.use_policy(Prefer("bfloat16"))
    # Whole blocks of 16 channels, which are handed to any version of oneDNN.
    model, x = (
        nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)),
        torch.randn(4, 16, 16, 16),
    )
    expected = step(model, x)
    with integration.enabled({"kernel": {"accuracy": "float32"}}):
        assert_same(step(model, x), expected)
    with integration.enabled({"kernel": {"accuracy": "relaxed"}}):
        got = step(model, x)
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == torch.float32
        error = ((one - other).square().mean() / other.square().mean()).sqrt().item()
        # Four convolutions lie between the input and the gradient of the first weight.
        assert 1e-4 < error < 4 * BFLOAT16_INSIDE.rms


@pytest.mark.parametrize("frozen", ["first weight", "first layer", "all", "all but bias"])
def test_frozen_weights(frozen: str, policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16, requires_grad=frozen == "all")
    for name, parameter in model.named_parameters():
        if {
            "first weight": name == "0.weight",
            "first layer": name.startswith("0."),
            "all": True,
            "all but bias": name != "0.bias",
        }[frozen]:
            parameter.requires_grad_(False)

    def compute() -> list[Tensor]:
        x.grad = None
        return [*step(model, x), *([x.grad] if x.grad is not None else [])]

    assert_unchanged(compute)


def test_retained_graph_and_parts_of_it(policy: None) -> None:
    weight, x = (
        torch.randn(6, 3, 3, 3, requires_grad=True),
        torch.randn(2, 3, 9, 9, requires_grad=True),
    )
    bias = torch.randn(6, requires_grad=True)

    def compute() -> list[Tensor]:
        out = torch.conv2d(x * 2, weight, bias, padding=1).sin()
        first = torch.autograd.grad(out.sum(), [x, weight, bias], retain_graph=True)
        again = torch.autograd.grad(out.sum(), [x, weight, bias], retain_graph=True)
        parts = [
            torch.autograd.grad(out.sum(), one, retain_graph=True)[0] for one in (x, weight, bias)
        ]
        return [out.detach(), *first, *again, *parts]

    assert_unchanged(compute)


def test_double_backward(policy: None) -> None:
    weight, x = (
        torch.randn(6, 3, 3, 3, requires_grad=True),
        torch.randn(2, 3, 9, 9, requires_grad=True),
    )

    def compute() -> list[Tensor]:
        out = torch.conv2d(x, weight, padding=1).sin().sum()
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        return list(torch.autograd.grad(grad.square().sum(), [x, weight]))

    assert_unchanged(compute)


def test_gradients_agree_with_differences(policy: None) -> None:
    weight = torch.randn(4, 1, 3, 2, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 2, 6, 5, dtype=torch.float64, requires_grad=True)
    with integration.enabled():
        for _ in range(3):
            assert torch.autograd.gradcheck(
                lambda x, w: torch.conv2d(x, w, stride=2, padding=1, groups=2),
                (x, weight),
                fast_mode=True,
                nondet_tol=1e-12,  # trials of different alternatives follow each other
            )


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant: bool, policy: None) -> None:
    first, second = (
        nn.Conv2d(3, 8, 3),
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)),
    )
    model, x = nn.ModuleList([first, second]), torch.randn(2, 3, 12, 12)

    def compute() -> list[Tensor]:
        model.zero_grad()
        out = checkpoint(second, first(x), use_reentrant=reentrant)
        out.square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters())]

    assert_unchanged(compute)


def test_saved_tensors_that_hooks_replace(policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)

    def compute() -> list[Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            return step(model, x)

    assert_unchanged(compute)


def test_hooks(policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    seen: list[Any] = []
    model[2].register_forward_hook(
        lambda module, args, out: seen.append(out.detach().norm()) or out * 2
    )
    model[2].register_full_backward_hook(lambda module, into, out: seen.append(out[0].norm()))
    model[0].weight.register_hook(lambda grad: grad * 3)

    def compute() -> list[Tensor]:
        seen.clear()
        return [*step(model, x), *seen]

    assert_unchanged(compute)


def test_layers_that_read_the_same_input(policy: None) -> None:
    branches = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=d, dilation=d) for d in (1, 2, 3))
    twins = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
    model, x = nn.ModuleList([*branches, *twins]), torch.randn(2, 4, 10, 10)

    def compute() -> list[Tensor]:
        model.zero_grad()
        outs = [layer(x) for layer in model]
        for out in (outs[1], outs[0], outs[3], outs[2], outs[4]):
            out.square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    assert_unchanged(compute)
    bestof.use_policy(Prefer("shared im2row"))
    _Made.overrides = ()
    assert_unchanged(compute)


def test_an_input_changed_in_place_is_refused_as_ever(policy: None) -> None:
    weight, x = torch.randn(6, 3, 3, 3, requires_grad=True), torch.randn(2, 3, 9, 9)

    def compute() -> str:
        source = x * 1
        out = torch.conv2d(source, weight)
        source.add_(1)
        with pytest.raises(RuntimeError) as caught:
            out.sum().backward()
        return str(caught.value)

    expected = compute()
    with integration.enabled():
        assert [compute() for _ in range(CALLS)] == [expected] * CALLS


def test_memory_that_the_program_rewrites_unseen(policy: None) -> None:
    weight, x = torch.randn(6, 3, 3, 3, requires_grad=True), torch.randn(2, 3, 9, 9)
    start = x.clone()

    def compute() -> list[Tensor]:
        x.data.copy_(start)
        torch.conv2d(x, weight)  # its backward pass never comes
        x.data.mul_(2)  # the version stands still
        return [torch.autograd.grad(torch.conv2d(x, weight).square().sum(), weight)[0]]

    assert_unchanged(compute)
