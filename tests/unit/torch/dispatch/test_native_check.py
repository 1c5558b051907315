"""A C++ kernel that differs from its Python form never answers a call."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

import bestof.torch as integration
from bestof.errors import BestofWarning
from bestof.kernels.addresses import c_calls
from bestof.selection import Fixed, use_policy
from bestof.selection.policies.policy import Search
from bestof.selection.state.live_checks import LiveChecks
from bestof.selection.state.registry import Defaults
from bestof.torch.dispatch import native_check
from bestof.torch.dispatch.native_check import NativeChecks, agree
from bestof.torch.dispatch.overrides import convolution_override, operation_override
from bestof.torch.ops import distance
from bestof.torch.ops.convolution import native as convolutions
from bestof.torch.ops.product import native as products
from bestof.torch.ops.product.product import Product

Addresses = ctypes.POINTER(ctypes.c_void_p)
Run = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, Addresses, Addresses, ctypes.c_void_p)


class CCalls(ctypes.Structure):
    """As in native/bindings/c_calls.h."""

    _fields_ = (
        ("run", Run),
        ("turn", ctypes.c_void_p),
        ("fingerprint", ctypes.c_void_p),
    )


class Order:
    """Chooses the native kernel where there is one, else PyTorch's own kernels."""

    def start(self, alternatives: Sequence[str]) -> Search:
        wanted = ("native blocked", "native convgemm", "independent", "as is")
        return Fixed(next(name for name in wanted if name in alternatives)).start(alternatives)


def _one_more(address: int | None) -> int | None:
    """Return the address of the next element."""
    return None if address is None else address + 4


def _later(address: int | None) -> int | None:
    """Return the next element's address, unless an allocation begins at this address."""
    return address if address is None or address % 64 == 0 else address + 4


FAULTS: dict[str, Callable[[int | None], int | None]] = {"always": _one_more, "offsets": _later}
_kept: list[CCalls] = []  # kernels may be called as long as the process lasts


@pytest.fixture(params=FAULTS)
def wrong(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The C++ kernels read x, or A, one element too late."""
    right, move = CCalls.from_address(c_calls()), FAULTS[request.param]

    def running(place: int) -> CCalls:
        """Return the table of functions, of which `run` moves the operand at this place."""

        def run(plan: int, operands: Any, results: Any, packed: int | None) -> bool:
            moved = (ctypes.c_void_p * 3)(*operands[:3])
            moved[place] = move(moved[place])
            return bool(right.run(plan, moved, results, packed))

        table = CCalls.from_buffer_copy(right)
        table.run = Run(run)
        _kept.append(table)
        return table

    for module, place in ((products, 1), (convolutions, 0)):
        table = running(place)
        monkeypatch.setattr(module, "c_calls", lambda table=table: ctypes.addressof(table))
    monkeypatch.setattr(Product, "least", 1)
    return str(request.param)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def call_all(call: Callable[[], Tensor], right: Tensor, times: int = 8) -> list[str]:
    """Check every answer, and return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            torch.testing.assert_close(call(), right, rtol=1e-4, atol=1e-4)
    return [str(one.message) for one in caught if one.category is BestofWarning]


def test_a_wrong_product_is_found(wrong: str) -> None:
    """Operands that begin where their storage does hide the second fault from their own call."""
    del wrong
    bias, b, whole = random(40), random(40, 40, seed=1), random(50, 40)
    use_policy(Order())
    integration.enable()
    override = operation_override("product")
    assert override is not None
    assert override.shim is not None
    (message,) = call_all(lambda: torch.addmm(bias, whole[:30], b), _addmm(bias, whole[:30], b))
    assert "'native blocked'" in message
    before = override.shim.asked
    assert call_all(lambda: torch.addmm(bias, whole[20:], b), _addmm(bias, whole[20:], b)) == []
    assert override.shim.asked == before + 8


def _addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (a.double() @ b.double() + bias).float()


def test_the_user_is_told_once_what_is_wrong_and_what_to_do(wrong: str) -> None:
    del wrong
    use_policy(Order())
    integration.enable()
    said = []
    for rows in (30, 31, 32):
        a, b = random(rows, 40), random(40, 40, seed=1)
        said += call_all(partial(torch.mm, a, b), (a.double() @ b.double()).float())
    (message,) = said
    for part in ("'native blocked'", "product mm m30,k40,n40", "please report"):
        assert part in message


@pytest.mark.parametrize("frozen", [True, False])
def test_a_wrong_convolution_is_found(
    monkeypatch: pytest.MonkeyPatch, wrong: str, frozen: bool
) -> None:
    # Kernels stay in memory for each shape, so each case has its own.
    side = 9 + 2 * list(FAULTS).index(wrong) + frozen
    x, w = random(3, 6, side, side), random(8, 6, 3, 3, seed=1)
    x = x.contiguous(memory_format=torch.channels_last)  # which the kernels read in place
    right = torch.conv2d(x.double(), w.double()).float()
    w.requires_grad_(not frozen)
    x.requires_grad_(not frozen)
    use_policy(Order())
    integration.enable()
    override = convolution_override()
    assert override is not None
    met: list[Any] = []
    find = override.layer.find_forward

    def noted(*given: Any) -> Any:
        met.append(given)
        return find(*given)

    monkeypatch.setattr(override.layer, "find_forward", noted)
    with torch.set_grad_enabled(not frozen):
        (message,) = call_all(lambda: torch.conv2d(x, w), right)
    assert len(met) == 8
    assert "'native convgemm'" in message
    assert "convolution" in message


@pytest.mark.parametrize("strides", [(40, 1), (1, 30), (55, 1), (1, 37)], ids=str)
@pytest.mark.parametrize("offset", [0, 3, 64])
def test_right_products_are_left_to_cpp(
    strides: tuple[int, int], offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Product, "least", 1)
    a = random(3000).as_strided((30, 40), strides, offset)
    b = random(40, 40, seed=1)
    use_policy(Order())
    integration.enable()
    override = operation_override("product")
    assert override is not None
    assert override.shim is not None
    right = (a.double() @ b.double()).float()
    assert call_all(lambda: torch.mm(a, b), right, 4) == []
    before = override.shim.asked
    assert call_all(lambda: torch.mm(a, b), right) == []
    assert override.shim.asked == before


def test_operands_that_are_not_numbers_prove_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Product, "least", 1)
    a, b = random(30, 40), random(40, 40, seed=1)
    a[3, 5], a[7, 7], b[2, 2] = torch.nan, torch.inf, 3e38
    right = torch.mm(a, b)
    use_policy(Order())
    integration.enable()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(6):
            torch.testing.assert_close(torch.mm(a, b), right, equal_nan=True)


def test_a_kernel_that_refuses_is_asked_again_later() -> None:
    checks, answers = NativeChecks("product"), [None, None, True]
    for expected in (False, False, True, True):
        assert checks.passes("key", "name", "problem", lambda: answers.pop(0)) is expected
    assert answers == []


def test_what_is_not_a_number_or_lies_otherwise_does_not_agree() -> None:
    def zero(x: Tensor) -> Tensor:
        return x.new_zeros(())

    def compare(got: Tensor, expected: Tensor) -> bool | None:
        return agree(lambda _: got, lambda _: expected, (torch.ones(1),), zero)

    ones = torch.ones(3, 4)
    assert compare(ones, ones.clone())
    assert compare(torch.full((2,), torch.nan), torch.full((2,), torch.nan))
    assert compare(torch.full((3, 4), torch.nan), ones) is False
    assert compare(ones.t().contiguous().t(), ones) is False
    assert compare(ones[:2], ones) is False
    nan = torch.full((), torch.nan)
    assert agree(lambda _: ones + 1, lambda _: ones, (ones,), lambda _: nan) is False


def test_a_wrong_element_of_any_part_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance, "PIECE", 16)
    right, apart = random(7, 40), torch.full((7, 1), 1e-3)

    def agrees(got: Tensor) -> bool | None:
        return agree(lambda _: got, lambda _: right, (right,), lambda _: apart)

    assert agrees(right)
    for at in (0, 100, 279):
        wrong = right.clone()
        wrong.flatten()[at] += 1.0
        assert agrees(wrong) is False


def test_no_result_is_kept_while_copies_are_computed() -> None:
    made: list[ref[Tensor]] = []

    def doubled(x: Tensor) -> Tensor:
        assert [one for one in made if one() is not None] == []
        result = 2 * x
        made.append(ref(result))
        return result

    assert agree(doubled, lambda x: 2 * x, (random(64),), lambda _: torch.zeros(()))
    assert len(made) == 2


def test_large_operands_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = random(8), random(64)
    monkeypatch.setattr(native_check, "_LARGE", small.nbytes)
    read: list[tuple[int, int]] = []

    def total(*given: Tensor) -> Tensor:
        read.append((given[0].data_ptr(), given[1].data_ptr()))
        return given[0].sum() + given[1].sum()

    assert agree(
        total, lambda *given: total(*given), (small, large), lambda *_: torch.full((), 1e-3)
    )
    assert {first for first, _ in read} > {small.data_ptr()}
    assert {second for _, second in read} == {large.data_ptr()}


def test_a_kernel_that_goes_wrong_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right, is_wrong = CCalls.from_address(c_calls()), False

    def run(plan: int, operands: Any, results: Any, packed: int | None) -> bool:
        moved = (ctypes.c_void_p * 3)(*operands[:3])
        moved[1] = _one_more(moved[1]) if is_wrong else moved[1]
        return bool(right.run(plan, moved, results, packed))

    table = CCalls.from_buffer_copy(right)
    table.run = Run(run)
    _kept.append(table)
    seconds = 0.0
    monkeypatch.setattr(Defaults, "live_checks", LiveChecks(lambda: seconds))
    monkeypatch.setattr(products, "c_calls", lambda: ctypes.addressof(table))
    monkeypatch.setattr(Product, "least", 1)
    a, b = random(30, 44), random(44, 40, seed=1)
    expected = (a.double() @ b.double()).float()
    use_policy(Order())
    integration.enable()
    assert call_all(lambda: torch.mm(a, b), expected, 200) == []
    is_wrong = True

    def run_a_minute() -> None:
        nonlocal seconds
        while seconds < 60.0:
            seconds += 0.01
            torch.mm(a, b)

    with pytest.warns(BestofWarning, match="the C\\+\\+ kernel of 'native blocked' does not give"):
        run_a_minute()
    assert call_all(lambda: torch.mm(a, b), expected, 200) == []
