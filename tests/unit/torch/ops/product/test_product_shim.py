"""The C++ kernels answer small and settled products without Python, and count them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from product_case import ROWS, enable, operands, random, shim_of
from torch import Tensor
from torch.nn import functional

import bestof.torch as integration
from bestof.torch.backends.shim import ASKED_EVERY
from bestof.torch.dispatch.override import Override
from bestof.torch.ops.product.problem import ProductProblem
from bestof.torch.ops.product.product import Product
from bestof.torch.ops.row import Row

UNTIL_ASKED = 2

CALLS: dict[str, Callable[[], Tensor]] = {
    "mm": lambda: torch.mm(*operands()[1:]),
    "addmm": lambda: torch.addmm(*operands()),
    "linear": lambda: functional.linear(random(96, 96), random(72, 96), random(72)),
    "linear of three dimensions": lambda: functional.linear(
        random(4, 24, 96), random(72, 96), random(72)
    ),
    "linear without bias": lambda: functional.linear(random(96, 96), random(72, 96)),
    "bmm": lambda: torch.bmm(random(3, 64, 64), random(3, 64, 64)),
    "baddbmm": lambda: torch.baddbmm(random(64), random(3, 64, 64), random(3, 64, 64)),
    "matmul": lambda: random(3, 64, 64) @ random(3, 64, 64).mT,
    "einsum": lambda: torch.einsum("bij,bkj->bik", random(3, 64, 64), random(3, 64, 64)),
    "strided": lambda: random(96, 200)[:, :96] @ random(200, 96)[:72].t(),
    "one row": lambda: random(1, 1024) @ random(1024, 1024),
    "one column": lambda: torch.mm(random(1024, 1024), random(1024, 1)),
}


def settle(call: Callable[[], Tensor]) -> None:
    for _ in range(UNTIL_ASKED + 2):
        call()


@pytest.mark.parametrize("name", CALLS)
def test_a_settled_call_does_not_enter_python(name: str) -> None:
    call = CALLS[name]
    expected = call()
    shim = shim_of(enable())
    settle(call)
    asked = shim.asked
    assert asked > 0
    for _ in range(8):
        assert torch.equal(call(), expected)
    assert shim.asked == asked


@pytest.mark.long(every=3)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("name", CALLS)
def test_a_settled_call_of_another_kernel_does_not_either(
    name: str, row: Row[ProductProblem]
) -> None:
    call = CALLS[name]
    expected = call()
    override = enable(row.name)
    shim = shim_of(override)
    settle(call)
    asked = shim.asked
    for _ in range(8):
        torch.testing.assert_close(call(), expected, rtol=1e-4, atol=1e-4)
    (problem,) = override.calls.totals()
    chosen = override.chosen(problem)
    assert chosen is not None
    assert shim.asked == asked + (8 if chosen.compiled is None and chosen.name != "as is" else 0)


def test_python_is_not_asked_before_the_third_call() -> None:
    shim = shim_of(enable())
    for asked in (0, 0, 1):
        CALLS["mm"]()
        assert shim.asked == asked


def test_small_products_never_ask() -> None:
    override = enable()
    shim = shim_of(override)
    side = round(Product.least ** (1 / 3)) - 1
    a, bias = random(side, side), random(side)
    for _ in range(10):
        functional.linear(a, a, bias)
        torch.mm(a, a)
        torch.bmm(a[None], a[None])
        torch.baddbmm(bias, a[None], a[None])
    assert shim.asked == 0
    assert override.calls.totals() == {}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_settled_call_reads_operands_where_they_begin(row: Row[ProductProblem]) -> None:
    """oneDNN read weights at twice their offset in their storage."""
    x, bias = random(3 * 96, 96).chunk(3)[1], random(3 * 72).chunk(3)[1]
    weights = random(3 * 72, 96, seed=1).chunk(3)
    expected = [functional.linear(x.double(), w.double(), bias.double()) for w in weights]
    is_relaxed = row.accuracy == "relaxed"
    enable(row.name, accuracy="relaxed" if is_relaxed else "float32")
    # The magnitudes of 96 terms sum up to about 61; bfloat16 errs by 2^-7 of that at most.
    tolerance = 0.5 if is_relaxed else 1e-4
    for _ in range(UNTIL_ASKED + 3):
        for w, want in zip(weights, expected, strict=True):
            assert (functional.linear(x, w, bias) - want).abs().max() <= tolerance


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_axis_of_one_element_may_have_any_stride(row: Row[ProductProblem]) -> None:
    a, b = random(1, 16, 256), random(1, 256, 256, seed=1)
    expected = torch.bmm(a, b)
    enable(row.name)
    for far in (a, a.as_strided((1, 16, 256), (2**41, 256, 1))):
        for _ in range(UNTIL_ASKED + 2):
            assert torch.allclose(torch.bmm(far, b), expected, atol=1e-4)


def test_products_are_chosen_from_the_least_size_on() -> None:
    for columns, asked in ((127, 0), (128, 1)):
        shim = shim_of(enable())
        before = shim.asked
        for _ in range(UNTIL_ASKED + 1):
            torch.mm(random(64, 64), random(64, columns))
        assert shim.asked - before == asked


def test_all_calls_are_counted_and_the_selector_samples_them() -> None:
    override = enable()
    calls = 3 * ASKED_EVERY
    for _ in range(UNTIL_ASKED + calls):
        CALLS["addmm"]()
    assert list(override.calls.totals().values()) == [calls]
    assert 2 <= override.selector.settled_calls <= 4


def test_calls_that_differ_in_any_stride_are_apart() -> None:
    """A native kernel is made for the strides of its operands."""
    shim = shim_of(enable())
    settle(lambda: random(96, 200)[:, :96] @ random(96, 72))
    asked = shim.asked
    for _ in range(UNTIL_ASKED + 1):
        random(96, 201)[:, :96] @ random(96, 72)
    assert shim.asked == asked + 1


def test_a_decision_that_falls_is_forgotten_at_once() -> None:
    override = enable()
    shim = shim_of(override)
    settle(CALLS["mm"])
    asked = shim.asked
    override.chosen = lambda problem: None  # type: ignore[method-assign]
    override._look_up_again()
    for count in (1, 2):
        CALLS["mm"]()
        assert shim.asked == asked + count


def test_what_was_read_before_a_decision_is_not_believed() -> None:
    override = enable()
    shim, chosen, found = shim_of(override), override.chosen, []

    def late(problem: ProductProblem) -> Row[ProductProblem] | None:
        found.append(chosen(problem))
        shim.forget()  # by another thread's decision
        return found[-1]

    settle(CALLS["mm"])
    shim.forget()
    override.chosen = late  # type: ignore[method-assign]
    for _ in range(3):
        CALLS["mm"]()
    assert [row and row.name for row in found] == ["as is"] * 3


def test_another_accuracy_is_another_call() -> None:
    override = enable()
    settle(CALLS["mm"])
    enable(accuracy="relaxed")
    settle(CALLS["mm"])
    assert {problem.accuracy for problem in override.calls.totals()} == {
        "float32",
        "relaxed",
    }


def test_another_number_of_threads_is_another_call() -> None:
    override = enable()
    settle(CALLS["mm"])
    torch.set_num_threads(2)
    settle(CALLS["mm"])
    assert {problem.threads for problem in override.calls.totals()} == {1, 2}


def test_a_full_table_leaves_further_products_to_pytorch() -> None:
    shim = shim_of(enable())
    buffer = torch.zeros(64, 20_000)
    b = random(64, 128)
    for start in range(8_300):
        torch.mm(buffer[:, : 64 + start].as_strided((64, 64), (64 + start, 1)), b)
    assert shim.asked == 0
    settle(CALLS["mm"])
    assert shim.asked == 0
    assert torch.equal(CALLS["mm"](), CALLS["mm"]())


def test_two_shims_do_not_share_the_dispatcher() -> None:
    first = enable()
    second = Override(Product())
    assert second.shim is None  # PyTorch's own kernels are not in place
    integration.disable()
    third = Override(Product())
    assert third.shim is not None
    first.register()
    third.register()
    assert first.is_registered
    assert not third.is_registered
    third.remove()
    assert first.is_registered
    first.remove()
