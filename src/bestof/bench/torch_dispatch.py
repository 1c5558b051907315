"""Measure what settled convolutions and products cost beyond PyTorch's own, if PyTorch's own was
chosen."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from statistics import median
from typing import Any, Protocol
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from bestof.bench.call_time import CallTime
from bestof.bench.quartiles import Quartiles
from bestof.configuration import Configuration
from bestof.errors import InvalidArgument
from bestof.torch.dispatch.convolution.override import ConvolutionOverride
from bestof.torch.dispatch.override import Override
from bestof.torch.ops.convolution.pytorch_conv import pytorch_conv
from bestof.torch.ops.product.product import Product
from bestof.torch.ops.product.pytorch_product import PyTorchProduct

_ORDERS = ("forward=as is", "input gradient=as is", "weight gradient=as is", "layer=independent")
_WARM = 200  # calls after which no problem is looked into any more
# Rows, inputs and outputs of linear layers. The first is below the least size that is chosen for.
_PRODUCTS = ((8, 64, 64), (16, 512, 512))


class _Override(Protocol):
    def register(self) -> None: ...
    def remove(self) -> None: ...


def measure(repeats: int = 15, calls: int = 1000) -> list[CallTime]:
    """Measure each case `repeats` times: PyTorch, the Python pass and bestof, one after the other.

    Raises InvalidArgument for fewer than two repeats, or no calls.
    """
    if repeats < 2 or calls < 1:
        raise InvalidArgument(
            f"bench dispatch: expected at least 2 repeats and 1 call; got {repeats} and {calls}"
        )
    override, in_python = _settled_override(), _settled_override(by_shim=False)
    kept = pytorch_conv()
    passing = {
        "convolution": partial(_pass, kept.convolution),
        "convolution_backward": partial(_pass, kept.convolution_backward),
    }
    rows = [
        _time(name, work, override, in_python, passing, repeats, calls) for name, work in _cases()
    ]
    products = _settled_products()
    own = PyTorchProduct()
    passing = {name: partial(_pass_product, own, name) for name in ("mm", "addmm")}
    rows += [
        _time(name, work, products, None, passing, repeats, calls)
        for name, work in _product_cases()
    ]
    return rows


def _settled_override(by_shim: bool = True) -> ConvolutionOverride:
    orders = ",".join(f"convolution {order}" for order in _ORDERS)
    with patch.dict(os.environ, {"BESTOF_FORCE": orders, "BESTOF_STORE": "off"}):
        override = ConvolutionOverride(by_shim=by_shim)
        override.register()
        for _, work in _cases():
            work(_WARM)
        override.remove()
    return override


def _settled_products() -> Override:
    with patch.dict(os.environ, {"BESTOF_FORCE": "product=as is", "BESTOF_STORE": "off"}):
        override = Override(Product())
        override.configure(Configuration())
        for _, work in _product_cases():
            work(_WARM)
        override.remove()
    return override


def _product_cases() -> Iterator[tuple[str, Callable[[int], None]]]:
    for rows, inputs, outputs in _PRODUCTS:
        x, weight, bias = torch.ones(rows, inputs), torch.ones(outputs, inputs), torch.ones(outputs)

        def infer(calls: int, run: Callable[[], Tensor]) -> None:
            with torch.inference_mode():
                for _ in repeat(None, calls):
                    run()

        run = partial(functional.linear, x, weight, bias)
        yield f"linear, {rows} x {inputs} x {outputs}", partial(infer, run=run)


def _cases() -> Iterator[tuple[str, Callable[[int], None]]]:
    x, weight = (
        torch.ones(1, 4, 8, 8, requires_grad=True),
        torch.ones(4, 4, 3, 3, requires_grad=True),
    )
    bias, grad = torch.ones(4, requires_grad=True), torch.ones(1, 4, 8, 8)
    forward = partial(functional.conv2d, x, weight, bias, 1, 1)

    def infer(calls: int) -> None:
        with torch.inference_mode():
            for _ in repeat(None, calls):
                forward()

    def train(calls: int) -> None:
        for _ in repeat(None, calls):
            forward()

    def differentiate(calls: int) -> None:
        result, wanted = forward(), (x, weight, bias)
        for _ in repeat(None, calls):
            torch.autograd.grad(result, wanted, grad, retain_graph=True)

    yield "forward, without gradients", infer
    yield "forward, with gradients", train
    yield "backward", differentiate


def _time(
    name: str,
    work: Callable[[int], None],
    override: _Override,
    in_python: _Override | None,
    passing: Mapping[str, Callable[..., Any]],
    repeats: int,
    calls: int,
) -> CallTime:
    own: list[float] = []
    passed: list[float] = []
    enabled: list[float] = []
    by_python: list[float] = []
    for _ in range(repeats):
        own.append(_seconds(work, calls))
        with _passing(passing):
            passed.append(_seconds(work, calls) - own[-1])
        for one, taken in ((override, enabled), (in_python, by_python)):
            if one is None:
                continue
            one.register()
            try:
                taken.append(_seconds(work, calls) - own[-1])
            finally:
                one.remove()
    ours = Quartiles.of(enabled)
    return CallTime(
        name,
        median(own),
        median(passed),
        median(by_python) if by_python else None,
        ours.middle,
        ours.spread,
    )


def _seconds(work: Callable[[int], None], calls: int) -> float:
    work(1)
    started = time.perf_counter()
    work(calls)
    return (time.perf_counter() - started) / calls


def _pass(kernel: Callable[..., Any], *given: Any) -> Any:
    return kernel(*given)


def _pass_product(kernel: PyTorchProduct, name: str, *given: Any) -> Any:
    *bias, a, b = given
    return kernel(name, bias[0] if bias else None, a, b)


@contextmanager
def _passing(kernels: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    new: Any = torch.library.Library
    library = new("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the override itself
            for name, kernel in kernels.items():
                library.impl(name, kernel, "CPU", allow_override=True)
        yield
    finally:
        library._destroy()
