"""Measure what a settled convolution costs beyond PyTorch's own, if PyTorch's own was chosen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional

from bestof.bench.call_time import CallTime
from bestof.bench.quartiles import Quartiles
from bestof.errors import InvalidArgument
from bestof.torch.override import ConvolutionOverride, originals

_ORDERS = ("forward=as is", "input gradient=as is", "weight gradient=as is", "layer=independent")
_WARM = 200  # calls after which no pass is looked into any more


def measure(repeats: int = 15, calls: int = 1000) -> list[CallTime]:
    """Measure each case `repeats` times: PyTorch, the Python pass and bestof, one after the other.

    Raises InvalidArgument for fewer than two repeats, or no calls.
    """
    if repeats < 2 or calls < 1:
        raise InvalidArgument(
            f"bench dispatch: expected at least 2 repeats and 1 call; got {repeats} and {calls}"
        )
    override, in_python = _settled_override(), _settled_override(by_shim=False)
    return [_time(name, work, override, in_python, repeats, calls) for name, work in _cases()]


def _settled_override(by_shim: bool = True) -> ConvolutionOverride:
    orders = ",".join(f"convolution {order}" for order in _ORDERS)
    with patch.dict(os.environ, {"BESTOF_FORCE": orders, "BESTOF_STORE": "off"}):
        override = ConvolutionOverride(by_shim=by_shim)
        override.register()
        for _, work in _cases():
            work(_WARM)
        override.remove()
    return override


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
    override: ConvolutionOverride,
    in_python: ConvolutionOverride,
    repeats: int,
    calls: int,
) -> CallTime:
    own: list[float] = []
    passed: list[float] = []
    enabled: list[float] = []
    by_python: list[float] = []
    for _ in range(repeats):
        own.append(_seconds(work, calls))
        with _passing():
            passed.append(_seconds(work, calls) - own[-1])
        for one, taken in ((override, enabled), (in_python, by_python)):
            one.register()
            try:
                taken.append(_seconds(work, calls) - own[-1])
            finally:
                one.remove()
    ours = Quartiles.of(enabled)
    return CallTime(name, median(own), median(passed), median(by_python), ours.middle, ours.spread)


def _seconds(work: Callable[[int], None], calls: int) -> float:
    work(1)
    started = time.perf_counter()
    work(calls)
    return (time.perf_counter() - started) / calls


def _pass(kernel: Callable[..., Any], *given: Any) -> Any:
    return kernel(*given)


@contextmanager
def _passing() -> Iterator[None]:
    kept = originals()
    new: Any = torch.library.Library
    library = new("aten", "IMPL")
    try:
        library.impl("convolution", partial(_pass, kept.convolution), "CPU", allow_override=True)
        library.impl(
            "convolution_backward",
            partial(_pass, kept.convolution_backward),
            "CPU",
            allow_override=True,
        )
        yield
    finally:
        library._destroy()
