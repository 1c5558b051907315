"""Which products go through untouched, and that results, gradients and errors are PyTorch's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from product_case import enable, operands, random, shim_of
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import bestof.torch as integration
from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.ops.onednn import has_bfloat16

pytestmark = pytest.mark.filterwarnings("ignore:.*deterministic:UserWarning")


def matrices(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    a, b = random(96, 96), random(96, 72, seed=1)
    if not (dtype.is_floating_point or dtype.is_complex):
        return (4 * a).to(dtype), (4 * b).to(dtype)
    return a.to(dtype), b.to(dtype)


def into_out() -> Tensor:
    _, a, b = operands()
    return torch.mm(a, b, out=torch.empty(96, 72))


def into_itself() -> Tensor:
    _, a, b = operands()
    return torch.ones(96, 72).addmm_(a, b)


class Marked(Tensor):
    """A subclass that leaves the operators as they are."""


UNTOUCHED: dict[str, Callable[[], Tensor]] = {
    **{
        str(dtype): lambda dtype=dtype: torch.mm(*matrices(dtype))  # type: ignore[misc]
        for dtype in (*(torch.int64, torch.int8, torch.complex64, torch.float64),)
    },
    "out=": into_out,
    "in place": into_itself,
    "beta": lambda: torch.addmm(*operands(), beta=0.5),
    "beta of 0": lambda: torch.addmm(torch.full((72,), torch.nan), *operands()[1:], beta=0),
    "alpha": lambda: torch.addmm(*operands(), alpha=2),
    "a bias for each row": lambda: torch.addmm(random(96, 1), *operands()[1:]),
    "a bias of C's shape": lambda: torch.addmm(random(96, 72), *operands()[1:]),
    "one bias for all": lambda: torch.addmm(random(1), *operands()[1:]),
    "a strided bias": lambda: torch.addmm(random(144)[::2], *operands()[1:]),
    "expanded rows": lambda: random(1, 96).expand(96, 96) @ operands()[2],
    "expanded columns": lambda: operands()[1] @ random(96, 1).expand(96, 72),
    "an expanded batch": lambda: torch.bmm(random(1, 64, 64).expand(3, 64, 64), random(3, 64, 64)),
    "overlapping rows": lambda: random(400).as_strided((96, 96), (3, 1)) @ operands()[2],
    "every second column": lambda: random(96, 192)[:, ::2] @ operands()[2],
    "no rows": lambda: random(0, 2**20) @ random(2**20, 1),
    "no terms": lambda: torch.addmm(random(1024), random(1024, 0), random(0, 1024)),
    "no batch": lambda: torch.bmm(random(0, 256, 256), random(0, 256, 256)),
    "sparse": lambda: torch.mm(operands()[1].to_sparse(), operands()[2]),
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_these_go_through_untouched(name: str) -> None:
    call = UNTOUCHED[name]
    expected = call()
    shim = shim_of(enable("native blocked"))
    for _ in range(5):
        result = call()
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()
    assert shim.asked == 0


def test_boxed_calls_go_through_untouched() -> None:
    """Only inference tensors reach the kernel as torch.ops calls it: autograd unboxes others."""
    bias, a, b = operands()
    expected = torch.addmm(bias, a, b), torch.bmm(a[None], b[None])
    shim = shim_of(enable("native blocked"))
    with torch.inference_mode():
        bias, a, b = (one.clone() for one in (bias, a, b))
        for _ in range(5):
            assert torch.equal(torch.ops.aten.addmm(bias, a, b), expected[0])
            torch.testing.assert_close(torch.ops.aten.mm(a, b) + bias, expected[0])
            assert torch.equal(torch.ops.aten.bmm(a[None], b[None]), expected[1])
            assert torch.equal(
                torch.ops.aten.baddbmm(torch.zeros(1), a[None], b[None]), expected[1]
            )
    assert shim.asked == 0


def test_deterministic_and_exact_programs_get_pytorchs_bits() -> None:
    a, b = random(4, 512), random(512, 512, seed=1)
    expected = a @ b
    shim = shim_of(enable("onednn"))
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(5):
            assert torch.equal(a @ b, expected)
        assert shim.asked == 0
    finally:
        torch.use_deterministic_algorithms(False)
    integration.enable({"kernel": {"accuracy": "exact"}})
    override = operation_override("product")
    assert override is not None
    assert not override.is_registered
    for _ in range(5):
        assert torch.equal(a @ b, expected)
    assert shim.asked == 0


def test_subclasses_are_computed_by_pytorch() -> None:
    _, a, b = operands()
    override = enable("native blocked")
    for _ in range(5):
        assert type(a.as_subclass(Marked) @ b) is Marked
    assert override.calls.totals() == {}


def test_fake_and_meta_tensors_have_no_numbers() -> None:
    shim = shim_of(enable())
    for _ in range(5):
        assert torch.mm(
            torch.empty(96, 96, device="meta"), torch.empty(96, 72, device="meta")
        ).is_meta
        with FakeTensorMode() as mode:
            result = torch.mm(torch.empty(96, 96), torch.empty(96, 72))
    assert result.fake_mode is mode  # type: ignore[attr-defined]  # of fake tensors
    assert shim.asked == 0


REFUSED: dict[str, Callable[[], Any]] = {
    "inner sizes": lambda: torch.mm(random(96, 95), random(96, 72)),
    "dimensions": lambda: torch.mm(random(96, 96, 1), random(96, 72)),
    "batches": lambda: torch.bmm(random(2, 64, 64), random(3, 64, 64)),
    "dtypes": lambda: torch.mm(random(96, 96), random(96, 72).double()),
    "a bias": lambda: torch.addmm(random(71), random(96, 96), random(96, 72)),
    "the bias's dtype": lambda: torch.addmm(random(72).double(), random(96, 96), random(96, 72)),
    "a linear layer": lambda: functional.linear(random(96, 96), random(72, 95), random(72)),
    "a factor": lambda: torch.addmm(*operands(), alpha=1j),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_pytorch_refuses_get_its_own_error(name: str) -> None:
    def words() -> str:
        with pytest.raises(RuntimeError) as caught:
            REFUSED[name]()
        return str(caught.value)

    expected = words()
    enable()
    for _ in range(4):
        assert words() == expected


def gradients(dtype: torch.dtype, bias: bool, batch: tuple[int, ...]) -> list[Tensor]:
    """Return what a linear layer computes, with the gradients of a sum over two calls."""
    x = random(*batch, 96).to(dtype).requires_grad_()
    weight = random(128, 96, seed=1).to(dtype).requires_grad_()
    b = random(128, seed=2).to(dtype).requires_grad_() if bias else None
    results: list[Tensor] = []
    for _ in range(2):
        results.append(functional.linear(x, weight, b))
        results[-1].square().sum().backward()
    leaves = [x, weight] if b is None else [x, weight, b]
    return [one.detach() for one in results] + [one.grad for one in leaves if one.grad is not None]


@pytest.mark.parametrize("name", ["as is", "native blocked", "onednn"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [(64,), (4, 20), (48,)])
def test_gradients_are_within_float32(name: str, bias: bool, batch: tuple[int, ...]) -> None:
    expected = gradients(torch.float64, bias, batch)
    override = enable(name)
    for _ in range(4):
        for got, right in zip(gradients(torch.float32, bias, batch), expected, strict=True):
            # Sums of up to 128 terms twice over: eps sqrt(128) is 1.4e-6, and 1e-5 holds 7 of them.
            error = (got.double() - right).abs().max() / right.square().mean().sqrt()
            assert error < 1e-5
    assert len(override.calls.totals()) == 3  # the forward pass and both gradients


def test_double_backward_goes_through() -> None:
    def second() -> Tensor:
        a = random(96, 96).requires_grad_()
        b = random(96, 72, seed=1).requires_grad_()
        (first,) = torch.autograd.grad((a @ b).pow(3).sum(), a, create_graph=True)
        return torch.autograd.grad(first.square().sum(), b)[0]

    expected = second()
    enable()
    for _ in range(4):
        assert torch.equal(second(), expected)


def test_no_grad_and_inference_mode() -> None:
    bias, a, b = operands()
    a.requires_grad_()
    expected = torch.addmm(bias, a, b).detach()
    enable("native blocked")
    for _ in range(4):
        with torch.no_grad():
            quiet = torch.addmm(bias, a, b)
        with torch.inference_mode():
            inferred = torch.addmm(bias, a, b)
        loud = torch.addmm(bias, a, b)
        torch.testing.assert_close(quiet, expected)
        torch.testing.assert_close(inferred, expected)
        assert loud.requires_grad
        assert not quiet.requires_grad
        assert inferred.is_inference()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_functions_of_functorch_are_pytorchs() -> None:
    a, b = random(3, 96, 96), random(96, 72, seed=1)

    def run() -> tuple[Tensor, ...]:
        mapped = torch.func.vmap(torch.mm, (0, None))(a, b)
        slopes = torch.func.grad(lambda one: (one @ b).square().sum())(a[0])
        _, tangent = torch.func.jvp(lambda one: one @ b, (a[0],), (a[1],))
        return mapped, slopes, tangent

    expected = run()
    enable()
    for _ in range(4):
        assert all(map(torch.equal, run(), expected))


def test_modes_of_the_program_see_the_operators() -> None:
    _, a, b = operands()
    expected = a @ b
    enable("native blocked")
    for _ in range(4):
        with FlopCounterMode(display=False) as counter:
            torch.testing.assert_close(a @ b, expected)
        assert counter.get_total_flops() == 2 * 96 * 96 * 72
        with torch.device("meta"):
            torch.testing.assert_close(a @ b, expected)


def test_compiled_programs_are_untouched() -> None:
    bias, a, b = operands()
    expected = torch.addmm(bias, a, b)
    shim = shim_of(enable("native blocked"))
    compiled = torch.compile(torch.addmm, backend="aot_eager")
    for _ in range(4):
        torch.testing.assert_close(compiled(bias, a, b), expected)
    torch._dynamo.reset()
    integration.disable()
    asked = shim.asked
    torch.testing.assert_close(
        torch.compile(torch.addmm, backend="aot_eager")(bias, a, b), expected
    )
    assert shim.asked == asked


def in_four_threads(work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_share_decisions() -> None:
    bias, a, b = operands()
    expected = torch.addmm(bias, a, b)
    override = enable()
    wrong: list[int] = []

    def work() -> None:
        torch.set_num_threads(1)
        wrong.append(sum(not torch.equal(torch.addmm(bias, a, b), expected) for _ in range(200)))

    in_four_threads(work)
    # Calls before the decision are not counted. How many threads make them depends on the system.
    (before,) = override.calls.totals().values()
    in_four_threads(work)
    assert list(override.calls.totals().values()) == [before + 800]
    assert wrong == [0] * 8


def test_a_fork_goes_on() -> None:
    bias, a, b = operands()
    expected = torch.addmm(bias, a, b)
    enable()
    for _ in range(5):
        torch.addmm(bias, a, b)
    child = os.fork()
    if child == 0:
        is_right = all(torch.equal(torch.addmm(bias, a, b), expected) for _ in range(100))
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not has_bfloat16(), reason="oneDNN has no bfloat16 product here")
def test_relaxed_programs_may_get_bfloat16() -> None:
    bias, a, b = operands()
    expected = torch.addmm(bias, a, b)
    shim = shim_of(enable("bfloat16", accuracy="relaxed"))
    for _ in range(6):
        result = torch.addmm(bias, a, b)
    assert shim.asked == 4  # Python runs this row
    error = (result - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert 2**-12 < error < 2**-7  # two operands of 8 bits, and no float32 result


def test_pytorch_is_put_back() -> None:
    shim = shim_of(enable())
    integration.disable()
    for _ in range(5):
        torch.addmm(*operands())
    assert shim.asked == 0
    with integration.enabled():
        for _ in range(5):
            torch.addmm(*operands())
    assert shim.asked > 0


def test_it_can_be_left_out() -> None:
    integration.enable({"kernel": {"product": False}})
    override = operation_override("product")
    assert override is not None
    assert not override.is_registered
    shim = shim_of(enable())
    with integration.enabled({"kernel": {"product": False}}):
        for _ in range(5):
            torch.addmm(*operands())
        assert shim.asked == 0
    for _ in range(5):
        torch.addmm(*operands())
    assert shim.asked > 0


@pytest.mark.parametrize("call", [torch.bmm, torch.mm])
def test_dimensions_that_the_operator_refuses_are_pytorchs_error(
    call: Callable[[Tensor, Tensor], Tensor],
) -> None:
    x = random(96, 96)
    right, wrong = (x[None], x) if call is torch.bmm else (x, x[None])
    enable("native blocked")
    for _ in range(5):
        call(right, right)
    for _ in range(5):
        with pytest.raises(RuntimeError, match=r"must be|expected"):
            call(wrong, wrong)
