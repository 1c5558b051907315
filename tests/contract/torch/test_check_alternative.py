"""`check_alternative` passes the rows of bestof, and finds what is wrong with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bestof.torch as bt
from bestof import testing
from bestof.errors import InvalidArgument
from bestof.testing import check_alternative
from bestof.torch.ops import table

ROWS = [(one.name, row.name) for one in table.OPERATIONS for row in one.rows]


def convolutions(*kernels: tuple[int, ...]) -> dict[str, tuple[Any, ...]]:
    """Return arguments of convolutions: extents of the kernel, stride, groups."""
    found = {}
    for high, wide, stride, groups in kernels:
        x = torch.randn(2, 32, 20, 20)
        w = torch.randn(32, 32 // groups, high, wide)
        padding = ((high - 1) // 2, (wide - 1) // 2)
        geometry = ((stride, stride), padding, (1, 1), False, (0, 0), groups)
        found[f"{high}x{wide} by {stride}, {groups} groups"] = (x, w, *geometry)
    return found


def convolution_gradients(*kernels: tuple[int, ...]) -> dict[str, tuple[Any, ...]]:
    """Return arguments of the backward pass of these convolutions."""
    found = {}
    for name, (x, w, *rest) in convolutions(*kernels).items():
        result = torch.conv2d(x, w, None, *rest[:3], groups=rest[-1])
        gradient = torch.randn(result.shape)
        found[name] = (gradient, x, w, None, *rest, (True, True, False))
    return found


KERNELS = [(3, 3, 1, 1), (1, 3, 1, 1), (1, 5, 1, 1), (1, 7, 1, 1), (7, 1, 1, 1), (5, 5, 1, 1)]
KERNELS += [(3, 3, 2, 1), (4, 4, 2, 1), (7, 7, 2, 1), (3, 3, 1, 32)]


def problems_of(operation: str) -> dict[str, tuple[Any, ...]] | None:
    """Return more than the examples, for rows that are written for one kind of kernel."""
    if operation == "convolution forward":
        return {name: (x, w, None, *rest) for name, (x, w, *rest) in convolutions(*KERNELS).items()}
    if operation.startswith("convolution") and "3d" not in operation:
        return convolution_gradients(*KERNELS)
    if operation == "product":
        return {"256 x 256": (1, torch.randn(256), torch.randn(256, 256), torch.randn(256, 256))}
    return None


FEW = [("convolution forward", "native winograd4"), ("convolution input gradient", "im2row")]
FEW += [("product", "native blocked")]


@pytest.mark.parametrize(("operation", "row"), FEW)
def test_some_of_our_rows_pass(operation: str, row: str) -> None:
    assert check_alternative(operation, row, problems_of(operation)).passed


@pytest.mark.long
@pytest.mark.parametrize(("operation", "row"), ROWS)
def test_our_rows_pass(operation: str, row: str) -> None:
    try:
        checked = check_alternative(operation, row, problems_of(operation))
    except AssertionError as error:
        if "supports none of" in str(error):
            pytest.skip("it supports none of these problems on this processor")
        raise
    assert checked.passed


X = torch.randn(16, 2**15)
SMALL = {"small": (X,)}


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def right(_pytorch: Any, _problem: Any, x: Tensor) -> Tensor:
    return silu(x)


def raises(_pytorch: Any, _problem: Any, x: Tensor) -> Tensor:
    if bool(torch.isnan(x).any()):
        raise ValueError("not a number")
    return silu(x)


def forgets_the_last(_pytorch: Any, _problem: Any, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[:-1] = silu(x)[:-1]
    return out


def writes(_pytorch: Any, _problem: Any, x: Tensor) -> Tensor:
    result = silu(x)
    x.add_(1)
    return result


def of_another_order(_pytorch: Any, _problem: Any, x: Tensor) -> Tensor:
    return silu(x).t().contiguous().t()


def double(_pytorch: Any, _problem: Any, x: Tensor) -> Tensor:
    return silu(x).double()


def rough(_pytorch: Any, _problem: Any, x: Tensor) -> Tensor:
    return silu(x) * (1 + 2.0**-12)


def hides_nan(_pytorch: Any, _problem: Any, x: Tensor) -> Tensor:
    return silu(x).nan_to_num()


def returns_its_argument(_pytorch: Any, _problem: Any, x: Tensor) -> Tensor:
    return x.copy_(silu(x))


_kept = torch.empty_like(X)


def reuses_memory(_pytorch: Any, _problem: Any, x: Tensor) -> Tensor:
    _kept.copy_(silu(x))
    found = _kept.view(_kept.shape)
    _kept[0].add_(torch.rand(()) * 1e-7)
    return found


def by_one_thread(pytorch: Any, problem: Any, x: Tensor) -> Tensor:
    return silu(x) if problem.threads == 1 else pytorch(x) + 1


FAULTS: dict[Callable[..., Any], str] = {
    raises: "small, float32, NaN, 1 thread: raised ValueError: not a number",
    forgets_the_last: "small, float32, .*: .*(off by|NaN)",
    writes: "an operand was changed",
    of_another_order: r"expected strides \(32768, 1\); got \(1, 16\)",
    double: r"expected torch.float32 .*; got torch.float64",
    rough: "small, float32, 1 thread: off by .* rms, where .* is allowed",
    hides_nan: "NaN, 1 thread: NaN or infinity lies elsewhere",
    returns_its_argument: "the result shares memory with an operand",
    reuses_memory: "a second call overwrites the results of the first",
    by_one_thread: "small, float32, 2 threads: off by",
}


def test_a_right_one_passes_by_function_and_by_name() -> None:
    checked = check_alternative("silu", right, SMALL)
    assert "small, float32, infinities, 2 threads" in checked.passed
    assert "small, float32, an empty batch, 1 thread" in checked.not_supported
    assert str(checked).endswith("are not supported")
    bt.register("silu", "mine", right)
    assert check_alternative("silu", "mine", SMALL) == checked


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.__name__)
def test_a_fault_is_found(fault: Callable[..., Any]) -> None:
    threads, operands = torch.get_num_threads(), X.clone()
    with pytest.raises(AssertionError, match=FAULTS[fault]) as told:
        check_alternative("silu", fault, SMALL)
    assert str(told.value).startswith(f"check_alternative('silu', '{fault.__name__}'): ")
    assert torch.get_num_threads() == threads
    assert torch.equal(X, operands)


def test_it_says_what_there_is_to_check() -> None:
    with pytest.raises(InvalidArgument, match=r"no operation 'sillu'.*did you mean 'silu'"):
        check_alternative("sillu", right)
    with pytest.raises(InvalidArgument, match=r"'silu' has no row 'nativ'.*did you mean 'native'"):
        check_alternative("silu", "nativ")
    for problems, told in (
        ({}, r"problems: expected a dict of arguments, such as .*; got \{\}"),
        ({"one": X}, r"problems: 'one': expected a tuple of arguments with a tensor .*got Tensor"),
        ({"one": ()}, "problems: 'one': expected a tuple of arguments with a tensor"),
        ({"one": (X, 3)}, "'one': these are no arguments of 'silu': too many positional"),
    ):
        with pytest.raises(InvalidArgument, match=told):
            check_alternative("silu", right, problems)  # type: ignore[arg-type]
    bt.register("silu", "mine", right, supports=lambda _: False)
    with pytest.raises(AssertionError, match=r"it supports none of .* cases; pass problems"):
        check_alternative("silu", "mine", SMALL)


def test_operands_of_one_dimension_are_checked() -> None:
    assert "1 thread" in " ".join(check_alternative("silu", right, {"a": (X.flatten(),)}).passed)


def test_what_is_no_number_may_lie_where_float64_has_it_too() -> None:
    """Of a sum over padding, it depends on the kernel: those of PyTorch differ, too."""
    name = "convolution weight gradient"
    problems = {"3x3": convolution_gradients((3, 3, 1, 1))["3x3 by 1, 1 groups"]}

    def spreads(pytorch: Any, problem: Any, *operands: Tensor) -> Tensor:
        wide = problem._replace(dtype="float64")
        found = original(pytorch, wide, *(one.double() for one in operands)).float()
        return torch.where(torch.arange(3) == 1, original(pytorch, problem, *operands), found)

    original = table.named(name, "").rows[0].function
    assert check_alternative(name, spreads, problems).passed
    with pytest.raises(AssertionError, match="NaN or infinity lies elsewhere than it should"):
        check_alternative("silu", lambda p, _, x: p(x) if x.isfinite().all() else x * torch.nan)


def test_results_that_are_absent_stay_absent() -> None:
    """As the gradient of a bias that a layer does not have."""
    right, nan = torch.ones(3), torch.tensor([1.0, torch.nan, 1.0])
    got = testing._as_far_spread((right, None), (nan, None), (nan, None))
    torch.testing.assert_close(got[0], nan, equal_nan=True)
    assert got[1] is None


def test_a_number_may_stand_where_pytorch_has_none_in_one_type_only() -> None:
    nan = torch.tensor([torch.nan, torch.nan, 1.0])
    other = torch.tensor([2.0, torch.nan, 1.0])
    got = testing._as_far_spread(nan, other, torch.tensor([5.0, 5.0, torch.nan]))
    torch.testing.assert_close(got, other, equal_nan=True)  # to be compared with 5, 5 and NaN
