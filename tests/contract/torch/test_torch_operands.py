"""Operands of any kind give what PyTorch gives, results and errors, beside settled calls.

C++ knows a settled call by numbers that it reads from the operands. Operands that share these
numbers and differ otherwise must not be taken for those of the settled call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from observed_operations import OPERATIONS, Operands
from test_torch_observers import STATES, Order, hold, seen, small_problems
from torch import Tensor

import bestof.torch as bt
from bestof.selection import use_policy

__all__ = ["small_problems"]  # a fixture


def _made_in_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


VARIANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "float64": Tensor.double,
    "float16": Tensor.half,
    "bfloat16": Tensor.bfloat16,
    "whole numbers": Tensor.int,
    "complex": lambda x: x.to(torch.complex64),
    "truth values": Tensor.bool,
    "mkldnn": Tensor.to_mkldnn,
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "empty": lambda x: x[:0],
    "shorter": lambda x: x[..., :-1],
    "a dimension more": lambda x: x[None],
    "a dimension less": lambda x: x[0],
    "expanded": lambda x: x[:1].expand_as(x),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "transposed": lambda x: x.transpose(-1, 0).contiguous().transpose(-1, 0),
    "at an offset": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    "copied when written": torch._lazy_clone,
    "made in inference mode": _made_in_inference_mode,
    "a parameter": torch.nn.Parameter,
    "NaN": lambda x: x * torch.nan,
}


def form(result: Any) -> Any:
    """Return what a program sees of a result beside its numbers."""
    if not isinstance(result, Tensor):
        return result
    return (
        *(result.dtype, result.shape, result.layout, result.requires_grad),
        *(result.is_inference(), result.stride() if result.layout is torch.strided else None),
    )


def outcome(run: Callable[..., Tensor], operands: Operands) -> Any:
    try:
        return run(*operands)
    except Exception as error:  # of any type: the program sees it
        # The rest lists where kernels are registered.
        return type(error).__name__, str(error).partition(". ")[0]


def hold_numbers(got: Tensor, wanted: Tensor) -> None:
    if not wanted.dtype.is_floating_point:  # whole numbers, which have no rounding
        assert got.equal(wanted)
        return
    known = ~wanted.isnan()
    assert known.equal(~got.isnan())
    if known.any():
        hold(got[known], wanted[known])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.long(every=8)
def test_other_operands_give_what_pytorch_gives(state: str, name: str, grad: bool) -> None:
    operation = OPERATIONS[name]
    own = operation.operands()
    calls = [
        (*own[:place], made, *own[place + 1 :])
        for place in range(len(own))
        for variant in VARIANTS.values()
        if isinstance(made := seen(lambda _, x, one=variant: one(x), None, own[place]), Tensor)  # type: ignore[misc]
    ]
    assert len(calls) > 10
    with torch.set_grad_enabled(grad):
        expected = [outcome(operation.run, given) for given in calls]
        if STATES[state]:
            use_policy(Order(*STATES[state]))
        bt.enable()
        for _ in range(5):
            operation.run(*own)
        for given, wanted in zip(calls, expected, strict=True):
            for _ in range(4):
                got = outcome(operation.run, given)
                assert form(got) == form(wanted)
                if isinstance(wanted, Tensor) and wanted.layout is torch.strided:
                    hold_numbers(got, wanted)
