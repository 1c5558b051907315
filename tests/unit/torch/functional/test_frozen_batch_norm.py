"""Frozen batch norm in PyTorch: values, gradients, kept memory, and what PyTorch answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import bestof
import bestof.torch as bt
from bestof.errors import BestofWarning
from bestof.selection.policies.fixed import Fixed
from bestof.torch.functional import frozen_batch_norm as module
from bestof.torch.ops.table import named

EPS = 2.0**-24
FORMATS = (torch.contiguous_format, torch.channels_last)


def statistics(channels: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(channels)
    mean, weight, bias = (torch.randn(channels, generator=generator) for _ in range(3))
    variance = torch.rand(channels, generator=generator) + 0.1
    return tuple(one.to(dtype) for one in (mean, variance, weight, bias))


def images(shape: tuple[int, ...] = (2, 8, 5, 7), dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def oracle(x: Tensor, given: tuple[Tensor, ...], relu: bool) -> tuple[Tensor, Tensor]:
    """Return the result and a bound, in float64: four roundings, as in the numerics tests."""
    mean, variance, weight, bias = (one.double() for one in given)
    shape = (-1, *[1] * (x.dim() - 2))
    scale = weight / (variance + 1e-5).sqrt()
    shift = (bias - mean * scale).view(shape)
    product = x.detach().double() * scale.view(shape)
    wanted = product + shift
    # PyTorch's own form takes scale and shift in float32: three more roundings of each.
    sizes = 5 * product.abs() + 2 * shift.abs() + 4 * (mean * scale).abs().view(shape)
    return (wanted.relu() if relu else wanted), EPS * (sizes + wanted.abs())


@pytest.mark.parametrize("name", ["as is", "native"])
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("relu", [False, True])
def test_both_alternatives_against_float64(
    name: str, memory_format: torch.memory_format, relu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST_BYTES", 0)
    bestof.use_policy(Fixed(name))
    x = images().contiguous(memory_format=memory_format).requires_grad_()
    given = statistics(8)
    y = bt.frozen_batch_norm(x, *given, relu=relu)
    wanted, bound = oracle(x, given, relu)
    assert ((y - wanted).abs() <= bound).all()
    assert y.is_contiguous(memory_format=memory_format)
    g = images((2, 8, 5, 7)).flip(0)
    y.backward(g)
    scale = (given[2].double() / (given[1].double() + 1e-5).sqrt()).view(-1, 1, 1)
    wanted = g * scale * ((y > 0) if relu else 1)
    assert ((x.grad - wanted).abs() <= 5 * EPS * wanted.abs()).all()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 3), (2, 4, 3, 2), (1, 4, 2, 2, 2)])
def test_gradcheck_and_double_backward(shape: tuple[int, ...], relu: bool) -> None:
    x = images(shape, torch.float64).requires_grad_()
    given = statistics(4, torch.float64)

    def function(inputs: Tensor) -> Tensor:
        return bt.frozen_batch_norm(inputs, *given, relu=relu)

    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


def test_double_backward_of_the_native_kernel_is_that_of_pytorch() -> None:
    given = statistics(8)
    slopes = []
    for function in (_by_bestof, _by_pytorch):
        x = images().requires_grad_()
        (g,) = torch.autograd.grad(function(x, *given).pow(2).sum(), x, create_graph=True)
        slopes.append(torch.autograd.grad(g.pow(2).sum(), x)[0])
    torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-5)


def _by_bestof(x: Tensor, *given: Tensor) -> Tensor:
    return bt.frozen_batch_norm(x, *given, relu=True)


def _by_pytorch(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.batch_norm(x, mean, variance, weight, bias).relu()


def kept_by(y: Tensor) -> list[int]:
    """Return the addresses of the tensors that the last pass keeps, statistics aside."""
    return [one.data_ptr() for one in y.grad_fn.saved_tensors if one is not None and one.dim() > 1]


def test_the_backward_pass_keeps_no_input() -> None:
    x = images().requires_grad_()
    y = bt.frozen_batch_norm(x, *statistics(8), relu=True)
    assert kept_by(y) == [y.data_ptr()]
    assert kept_by(bt.frozen_batch_norm(x, *statistics(8))) == []


def test_the_result_may_take_the_place_of_the_input() -> None:
    x, given = images().requires_grad_(), statistics(8)
    before = x * 2
    address, version = before.data_ptr(), before._version
    y = bt.frozen_batch_norm(before, *given, relu=True, inplace=True)
    assert y.data_ptr() == address
    assert y._version > version, "whoever kept the input must see that it was overwritten"
    y.sum().backward()
    wanted = images().requires_grad_()
    bt.frozen_batch_norm(wanted * 2, *given, relu=True).sum().backward()
    assert torch.equal(x.grad, wanted.grad)


def test_an_input_that_another_pass_kept_is_not_overwritten_in_silence() -> None:
    x = images().requires_grad_()
    middle = x.exp()  # keeps its result
    y = bt.frozen_batch_norm(middle, *statistics(8), inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_leaves_and_views_are_not_overwritten() -> None:
    leaf = images().requires_grad_()
    assert bt.frozen_batch_norm(leaf, *statistics(8), inplace=True) is not leaf
    whole = images((4, 8, 5, 7))
    bt.frozen_batch_norm(whole[:2], *statistics(8), inplace=True)
    assert torch.equal(whole, images((4, 8, 5, 7)))


def test_large_inputs_are_overwritten_once_the_kernel_is_chosen() -> None:
    given, x = statistics(8), images((2, 8, 96, 96))
    bestof.use_policy(Fixed("native"))
    first = bt.frozen_batch_norm(x.clone(), *given, relu=True)
    before = x.clone()
    again = bt.frozen_batch_norm(before, *given, relu=True, inplace=True)
    assert again.data_ptr() == before.data_ptr()
    assert torch.equal(first, again)
    bestof.use_policy(Fixed("as is"))
    wide = images((2, 8, 96, 97))
    assert bt.frozen_batch_norm(wide, *given, inplace=True).data_ptr() != wide.data_ptr()
    assert torch.equal(wide, images((2, 8, 96, 97)))


def test_summary_and_configuration_know_both_passes() -> None:
    given = statistics(8)
    bestof.use_policy(Fixed("native"))
    bt.enable()

    def step() -> Tensor:
        x = images((2, 8, 96, 96)).requires_grad_()
        bt.frozen_batch_norm(x, *given, relu=True).sum().backward()
        return x.grad

    by_kernel = step()
    found = {one.name: (one.chosen, one.calls) for one in bt.summary().passes}
    assert found == {"frozen norm": ("native", 1), "frozen norm backward": ("native", 1)}
    bt.enable({"kernel": {"without": ["frozen norm", "frozen norm backward"]}})
    torch.testing.assert_close(step(), by_kernel)
    assert {one.chosen for one in bt.summary().passes} == {"as is"}
    small = images((1, 8, 4, 4))
    assert torch.equal(bt.frozen_batch_norm(small, *given), functional.batch_norm(small, *given))


@pytest.mark.parametrize("name", ["frozen norm", "frozen norm backward"])
def test_a_wrong_kernel_never_answers(name: str) -> None:
    given = statistics(8)
    found = named(name, "test")
    right = found.rows[1].function

    def wrong(*operands: Any) -> Tensor:
        return right(*operands) + 0.01

    found.rows = (found.rows[0], replace(found.rows[1], function=wrong))
    bestof.use_policy(Fixed("native"))
    x = images((2, 8, 96, 96)).requires_grad_()

    def step() -> Tensor:
        y = bt.frozen_batch_norm(x, *given, relu=True)
        y.sum().backward()
        return y

    with pytest.warns(BestofWarning, match="'native' was disqualified: wrong result"):
        y = step()
    wanted, bound = oracle(x, given, True)
    assert ((y - wanted).abs() <= bound).all()
    slope = given[2] / (given[1] + 1e-5).sqrt()
    torch.testing.assert_close(x.grad, slope.view(-1, 1, 1) * (y > 0))


def test_a_trained_weight_gets_its_gradient_by_pytorch() -> None:
    mean, variance, weight, bias = statistics(8)
    weight.requires_grad_()
    bias.requires_grad_()
    bt.frozen_batch_norm(images(), mean, variance, weight, bias).sum().backward()
    assert torch.allclose(bias.grad, torch.full((8,), 70.0))


@pytest.mark.parametrize("name", ["as is", "native"])
@pytest.mark.parametrize("memory_format", FORMATS)
def test_bfloat16_with_statistics_of_float32(
    name: str, memory_format: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST_BYTES", 0)
    bestof.use_policy(Fixed(name))
    x = images(dtype=torch.bfloat16).contiguous(memory_format=memory_format).requires_grad_()
    given = statistics(8)
    y = bt.frozen_batch_norm(x, *given, relu=True)
    assert kept_by(y) == [y.data_ptr()]
    wanted, bound = oracle(x, given, True)
    unit = 2.0**-8  # of the rounding to bfloat16
    assert ((y - wanted).abs() <= unit * wanted + (1 + unit) * bound).all()
    g = images(dtype=torch.bfloat16).flip(0)
    y.backward(g)
    assert y.dtype is x.grad.dtype is torch.bfloat16
    assert x.grad.is_contiguous(memory_format=memory_format)
    wanted = g * (given[2].double() / (given[1].double() + 1e-5).sqrt()).view(-1, 1, 1) * (y > 0)
    assert ((x.grad - wanted).abs() <= (unit + 6 * EPS) * wanted.abs()).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_pytorchs(dtype: torch.dtype) -> None:
    x = images(dtype=dtype).requires_grad_()
    given = statistics(8, dtype)
    y = bt.frozen_batch_norm(x, *given, relu=True)
    assert kept_by(y) == [y.data_ptr()]
    y.sum().backward()
    assert y.dtype is x.grad.dtype is dtype
    assert torch.equal(y, functional.batch_norm(x, *given).relu())


def test_strided_and_empty_inputs() -> None:
    given = statistics(8)
    x = images((2, 8, 5, 14))[..., ::2].requires_grad_()
    bt.frozen_batch_norm(x, *given, relu=True).sum().backward()
    dense = x.detach().contiguous().requires_grad_()
    bt.frozen_batch_norm(dense, *given, relu=True).sum().backward()
    torch.testing.assert_close(x.grad, dense.grad)
    assert bt.frozen_batch_norm(images((0, 8, 5, 7)), *given).shape == (0, 8, 5, 7)


def test_transforms_and_compilers_get_pytorchs_operations() -> None:
    given = statistics(8)
    slope = torch.func.grad(lambda x: bt.frozen_batch_norm(x, *given, relu=True).sum())(images())
    x = images().requires_grad_()
    bt.frozen_batch_norm(x, *given, relu=True).sum().backward()
    torch.testing.assert_close(slope, x.grad)
    program = torch.export.export(_Norm(given), (images(),))
    torch.testing.assert_close(program.module()(images()), bt.frozen_batch_norm(images(), *given))


class _Norm(torch.nn.Module):
    def __init__(self, given: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.given = given

    def forward(self, x: Tensor) -> Tensor:
        return bt.frozen_batch_norm(x, *self.given)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"inputs": torch.ones(4)}, "inputs: expected two axes or more"),
        ({"running_var": torch.ones(3)}, "running_var: expected one number for each of the 4"),
        ({"weight": torch.ones(4, 1)}, r"weight: .* got the shape \(4, 1\)"),
        ({"eps": -1.0}, "eps: expected a number of at least 0; got -1.0"),
    ],
)
def test_bad_input_is_refused(change: dict, told: str) -> None:
    one = torch.ones(4)
    given = {"inputs": torch.ones(2, 4), "running_mean": one, "running_var": one, **change}
    with pytest.raises(ValueError, match=told):
        bt.frozen_batch_norm(**given)


@pytest.mark.parametrize("relu", [False, True])
def test_gradients_in_batches(relu: bool) -> None:
    x = images().requires_grad_()
    y = bt.frozen_batch_norm(x, *statistics(8), relu=relu)
    upstream = torch.randn(3, *y.shape, generator=torch.Generator().manual_seed(2))
    wanted = [torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in upstream]

    def gradient(one: Tensor, **named: bool) -> Tensor:
        return torch.autograd.grad(y, x, one, retain_graph=True, **named)[0]

    for got in gradient(upstream, is_grads_batched=True), torch.func.vmap(gradient)(upstream):
        torch.testing.assert_close(got, torch.stack(wanted), rtol=8 * EPS, atol=0.0)


def test_a_number_is_a_flag() -> None:
    x, given = images((2, 8, 64, 64)), statistics(8)
    assert torch.equal(
        bt.frozen_batch_norm(x, *given, relu=1), bt.frozen_batch_norm(x, *given, relu=True)
    )
