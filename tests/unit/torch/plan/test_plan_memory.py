"""Results of a plan are copies outside its arena, and kernels read the planned memory."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import TorchError


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def linear(function: Callable[..., Any], **modules: nn.Module) -> nn.Module:
    return Applied(
        function, a=nn.Linear(16, 16), b=nn.Linear(16, 16), c=nn.Linear(16, 16), **modules
    ).eval()


_VIEWS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "alpha_dropout": lambda _, h: nn.functional.alpha_dropout(h),
    "feature_alpha_dropout": lambda _, h: nn.functional.feature_alpha_dropout(h),
    "type_as": lambda _, h: h.type_as(torch.ones(())),
    "einsum": lambda _, h: torch.einsum("ij->ji", h),
    "broadcast_tensors": lambda _, h: torch.broadcast_tensors(h, h[:, :1])[0],
}


@pytest.mark.parametrize("view", _VIEWS.values(), ids=_VIEWS)
def test_views_that_no_schema_tells_of(view: Callable[[Any, Tensor], Tensor]) -> None:
    model = linear(lambda self, x: view(self, self.a(x)))
    x, y = torch.randn(2, 16, 16)
    plan = bt.optimize(model, x)
    result = plan(x)
    kept = result.clone()
    plan(y)
    assert torch.equal(result, kept)


@pytest.mark.parametrize("view", _VIEWS.values(), ids=_VIEWS)
def test_views_that_are_read_late(view: Callable[[Any, Tensor], Tensor]) -> None:
    model = linear(lambda self, x: view(self, self.a(x)) + self.c(self.b(self.b(x))))
    x = torch.randn(16, 16)
    plan = bt.optimize(model, x)
    with torch.no_grad():
        torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_loaded_plan_under_autocast() -> None:
    model = linear(lambda self, x: self.b(torch.matmul(self.a(x), x)))
    x = torch.randn(16, 16)
    plan, file = bt.optimize(model, x), io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded, expected = bt.load(file), plan(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loaded(x), expected)
        assert loaded.explain(x).steps
        bt.optimize(model, x)
    assert torch.equal(loaded(x), expected)


def test_outputs_keep_their_dtype() -> None:
    x = torch.randn(16, 16)
    assert bt.optimize(linear(lambda self, x: self.a(x).double()), x)(x).dtype is torch.float64
    plan = bt.optimize(linear(lambda self, x: self.a(x)), x)
    torch.set_default_dtype(torch.float64)
    try:
        assert plan(x).dtype is torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_negated_inputs() -> None:
    x = torch.randn(16, 16, dtype=torch.complex64)
    plan = bt.optimize(linear(lambda self, x: self.a(x)), x.imag.contiguous())
    negated = x.conj().imag
    assert negated.is_neg()
    torch.testing.assert_close(plan(negated), plan(-x.imag.contiguous()))


def test_equal_numbers_of_other_types() -> None:
    model = Applied(lambda _, x, k: x * k).eval()
    x = torch.arange(3)
    plan = bt.optimize(model, (x, 2))
    assert plan(x, 2.0).dtype is torch.float32
    assert plan(x, True).tolist() == [0, 1, 2]
    assert plan(x, 2).tolist() == [0, 2, 4]


def test_arguments_that_no_plan_takes() -> None:
    model = Applied(lambda _, x, k: x * k.value).eval()

    class Value:
        value = 2

    with pytest.raises(TorchError, match="an argument is a Value"):
        bt.optimize(model, (torch.ones(3), Value()))


def test_strides_that_say_nothing() -> None:
    plan = bt.optimize(linear(lambda self, x: self.a(x)), torch.randn(1, 16))
    plan(torch.randn(16, 2)[:, :1].t().contiguous().as_strided((1, 16), (99, 1)))
    assert len(plan._programs) == 1


def test_another_number_of_threads() -> None:
    model, x = linear(lambda self, x: self.a(x)), torch.randn(16, 16)
    plan, file = bt.optimize(model, x), io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded, threads = bt.load(file), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        torch.testing.assert_close(loaded(x), plan(x))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_tracers_and_transforms() -> None:
    x = torch.randn(4, 16)
    plan = bt.optimize(linear(lambda self, x: self.a(x)), x)
    with pytest.raises(TorchError, match=r"under torch\.jit\.trace"):
        torch.jit.trace(plan, x)
    with pytest.raises(TorchError, match=r"transform of torch\.func"):
        torch.vmap(plan)(torch.randn(2, 4, 16))
    with pytest.raises(TorchError, match="make_fx"):
        torch.fx.experimental.proxy_tensor.make_fx(plan)(x)


def test_an_explanation_of_nothing() -> None:
    plan = bt.OptimizedModel(nn.ReLU(), "float32")
    with pytest.raises(TorchError, match="nothing has been planned"):
        plan.explain()
