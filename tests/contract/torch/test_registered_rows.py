"""Rows that a program registers are chosen like those of bestof, and caught if they are wrong."""

from __future__ import annotations

import io
import os
import re
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bestof
import bestof.torch as bt
from bestof.bench.operation import measure_operations
from bestof.errors import BestofWarning, InvalidArgument, TorchError
from bestof.selection.state.registry import unmet_orders
from bestof.selection.store.memory import MemoryStore
from bestof.torch.ops import table
from bestof.torch.rows import register
from bestof.torch.rows.row_selector import row_selector

Run = Callable[[], Tensor]


def numbers(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).requires_grad_(grad)


X = numbers(512, 1024)


def by_numpy(_pytorch: Any, _problem: Any, x: Tensor) -> Tensor:
    values = x.numpy()
    return torch.from_numpy(values / (1 + np.exp(-values)))


class Spy:
    """Runs PyTorch's own kernel, or a wrong one."""

    def __init__(self, operation: str) -> None:
        self.ran = 0
        self.first = table.named(operation, "").rows[0].function

    def __call__(self, pytorch: Any, problem: Any, *operands: Any) -> Any:
        self.ran += 1
        return self.first(pytorch, problem, *operands)


def image() -> Tensor:
    return numbers(2, 16, 64, 64)


def weight_gradient() -> Tensor:
    x, w = image(), numbers(16, 16, 3, 3, grad=True)
    F.conv2d(x, w, padding=1).square().mean().backward()
    assert w.grad is not None
    return w.grad


CALLS: dict[str, Run] = {
    "silu": lambda: F.silu(X),
    "gelu": lambda: F.gelu(X),
    "softmax": lambda: torch.softmax(numbers(64, 4096), -1),
    "layer norm": lambda: F.layer_norm(X, (1024,)),
    "product": lambda: torch.addmm(numbers(512), X, X.t()) / 32,
    "max pooling": lambda: F.max_pool2d(numbers(8, 64, 64, 64), 2),
    "average pooling": lambda: F.avg_pool2d(numbers(8, 64, 64, 64), 2),
    "attention": lambda: F.scaled_dot_product_attention(*[numbers(2, 4, 256, 64)] * 3),
    "convolution forward": lambda: F.conv2d(image(), numbers(16, 16, 3, 3), padding=1),
    "convolution weight gradient": weight_gradient,
    "convolution 3d": lambda: F.conv3d(numbers(2, 16, 8, 16, 16), numbers(16, 16, 3, 3, 3)),
}


def check(run: Run, expected: Tensor) -> None:
    for _ in range(6):  # the first calls of a product are PyTorch's
        torch.testing.assert_close(run(), expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def fixed() -> None:
    bestof.use_policy("fixed:mine")


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.usefixtures("fixed")
def test_a_row_is_chosen(operation: str, before: bool) -> None:
    expected, spy = CALLS[operation](), Spy(operation)
    if before:
        bt.register(operation, "mine", spy)
    bt.enable()
    if not before:
        CALLS[operation]()
        bt.register(operation, "mine", spy)
    check(CALLS[operation], expected)
    assert spy.ran >= 3
    found = [one for one in bt.summary().passes if one.chosen == "mine"]
    assert found or operation.startswith("convolution 3d")
    assert "mine" in bestof.report()
    bt.unregister(operation, "mine")
    ran = spy.ran
    CALLS[operation]()
    assert spy.ran == ran


def first_of(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def with_first(result: Any, first: Any) -> Any:
    return first if isinstance(result, Tensor) else (first, *result[1:])


def raises(result: Any, _operands: Any) -> Any:
    raise ValueError("no such tile")


def of_another_shape(result: Any, _operands: Any) -> Any:
    return with_first(result, first_of(result)[:1])


def of_another_dtype(result: Any, _operands: Any) -> Any:
    return with_first(result, first_of(result).double())


def no_tensor(result: Any, _operands: Any) -> Any:
    return with_first(result, first_of(result).numpy())


def wrong(result: Any, _operands: Any) -> Any:
    return with_first(result, first_of(result) * 1.5)


def operand_of(operands: Any) -> Tensor:
    return next(one for one in reversed(operands) if isinstance(one, Tensor) and one.dim() > 1)


def writes(result: Any, operands: Any) -> Any:
    operand_of(operands).mul_(2)
    return result


def writes_uncounted(result: Any, operands: Any) -> Any:
    operand_of(operands).numpy()[:1] = 7
    return result


def not_a_number(result: Any, _operands: Any) -> Any:
    return with_first(result, first_of(result) * float("nan"))


FAULTS = {
    raises: "raised ValueError: no such tile",
    of_another_shape: "wrong result: expected torch.float32 .*; got torch.float32",
    of_another_dtype: "wrong result: expected torch.float32 .*; got torch.float64",
    no_tensor: "wrong result: expected",
    wrong: "wrong result: ",
    writes: "wrong result: an operand was changed",
    writes_uncounted: "wrong result: an operand was changed",
    not_a_number: "wrong result: ",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.usefixtures("fixed")
def test_a_fault_is_told_once_and_pytorch_answers(operation: str, fault: Any) -> None:
    expected, spy = CALLS[operation](), Spy(operation)

    def mine(pytorch: Any, problem: Any, *operands: Any) -> Any:
        return fault(spy(pytorch, problem, *operands), operands)

    bt.register(operation, "mine", mine)
    bt.enable()
    with pytest.warns(BestofWarning) as told:
        check(CALLS[operation], expected)
    (message,) = {str(one.message) for one in told if "mine" in str(one.message)}
    assert re.search(rf"BestOf\('{operation}'\), problem .*'mine' was disqualified: ", message)
    assert re.search(FAULTS[fault], message)
    assert spy.ran <= 2  # the made-up numbers are the second run


def resizes(pytorch: Any, _problem: Any, x: Tensor) -> Any:
    result = pytorch(x)
    x.resize_(1)
    return result


def in_inference_mode(pytorch: Any, _problem: Any, x: Tensor) -> Any:
    with torch.inference_mode():
        return pytorch(x)


def raises_again(pytorch: Any, _problem: Any, x: Tensor, seen: list[Any]) -> Any:
    seen.append(x)
    if len(seen) == 2:
        raise OSError("no more tiles")
    return pytorch(x)


KEPT = torch.empty_like(X)

ILL_MADE: dict[str, tuple[Callable[..., Any], str]] = {
    "resizes an operand": (resizes, "an operand was changed"),
    "sparse": (lambda pytorch, _, x: pytorch(x).to_sparse(), "got torch.float32 sparse_coo"),
    "strides": (lambda pytorch, _, x: pytorch(x).t().contiguous().t(), "expected strides"),
    "gradient": (lambda pytorch, _, x: pytorch(x).requires_grad_(), "wants a gradient"),
    "subclass": (lambda pytorch, _, x: nn.Parameter(pytorch(x), False), "got a Parameter"),
    "inference": (in_inference_mode, "was made in inference mode"),
    "own memory": (lambda pytorch, _, x: KEPT.copy_(pytorch(x)), "a second call overwrites"),
    "raises again": (partial(raises_again, seen=[]), "a second call raised OSError"),
}


@pytest.mark.parametrize("case", ILL_MADE)
@pytest.mark.usefixtures("fixed")
def test_an_ill_made_result_is_told_once_and_pytorch_answers(case: str) -> None:
    mine, told = ILL_MADE[case]
    x, expected = X.clone(), F.silu(X)
    bt.register("silu", "mine", mine)
    bt.enable()
    with pytest.warns(BestofWarning, match=f"'mine' was disqualified: wrong result: .*{told}"):
        results = [F.silu(x) for _ in range(3)]
    for one in results:
        assert torch.equal(one, expected)
        assert (type(one), one.stride()) == (Tensor, expected.stride())
        assert not one.requires_grad
        assert not one.is_inference()
    assert torch.equal(x, X)


@pytest.mark.parametrize("operation", ["silu", "product", "convolution forward"])
@pytest.mark.usefixtures("fixed")
def test_a_row_that_raises_later_gives_way_to_pytorch(operation: str) -> None:
    expected, spy, falls = CALLS[operation](), Spy(operation), [False]

    def mine(pytorch: Any, problem: Any, *operands: Any) -> Any:
        if falls[0]:
            raise ValueError("no more tiles")
        return spy(pytorch, problem, *operands)

    bt.register(operation, "mine", mine)
    bt.enable()
    check(CALLS[operation], expected)
    assert spy.ran >= 3
    falls[0] = True
    with pytest.warns(BestofWarning, match="raised ValueError: no more tiles") as told:
        check(CALLS[operation], expected)
    assert len(told) == 1


BOUNDS: dict[str, tuple[Any, str]] = {
    "raises": (lambda _: {}["none"], "its `bound` raised KeyError: 'none'"),
    "text": (lambda _: "small", "its `bound` must return a number above 0; it returned 'small'"),
    "nothing": (lambda _: None, "it returned None"),
    "not a number": (lambda _: float("nan"), "it returned nan"),
    "negative": (lambda _: -1, "it returned -1"),
}


@pytest.mark.parametrize("case", BOUNDS)
@pytest.mark.usefixtures("fixed")
def test_a_bound_that_is_none_disqualifies(case: str) -> None:
    bound, told = BOUNDS[case]
    expected = F.silu(X)
    bt.register("silu", "mine", by_numpy, bound=bound)
    bt.enable()
    with pytest.warns(BestofWarning, match=f"'mine' was disqualified: .*{re.escape(told)}"):
        check(lambda: F.silu(X), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_registers_though_another_thread_did_at_the_fork() -> None:
    bt.enable()
    F.silu(X)
    rows = row_selector(table.named("silu", ""))
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with register._lock, rows._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that hangs
        bt.register("silu", "mine", by_numpy)
        os._exit(0)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_an_order_for_a_row_that_comes_later_is_no_order_without_effect() -> None:
    bt.enable()
    F.silu(X)
    bestof.use_policy("fixed:a late one")
    assert any("fixed:a late one had no effect" in one for one in unmet_orders())
    bt.register("silu", "a late one", by_numpy)
    assert not unmet_orders()


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize("argument", ["supports", "promising"])
def test_a_question_that_raises_is_told_once(operation: str, argument: str) -> None:
    expected, spy = CALLS[operation](), Spy(operation)

    def asks(_problem: Any) -> bool:
        raise KeyError("width")

    bt.register(operation, "mine", spy, **{argument: asks})  # type: ignore[arg-type]
    bt.enable()
    with pytest.warns(BestofWarning, match="'mine' was disqualified: .* raised KeyError") as told:
        check(CALLS[operation], expected)
    assert len({str(one.message) for one in told if "mine" in str(one.message)}) == 1
    assert spy.ran == 0


def test_questions_leave_a_row_out_with_a_reason() -> None:
    spy = Spy("convolution forward")
    bt.register("convolution forward", "never", spy, supports=lambda _: False)
    bt.register("convolution forward", "slow", spy, promising=lambda _: False)
    bt.enable()
    CALLS["convolution forward"]()
    selector = row_selector(table.named("convolution forward", "")).selector
    (problem,) = selector._knowledge.tunings
    report = str(selector.explain(problem))
    assert re.search(r"never +not applicable", report)
    assert re.search(r"slow +left out.*its `promising` says so", report)
    assert spy.ran == 0


def test_a_row_races_and_training_may_lend_operands_to_numpy() -> None:
    bt.register("silu", "by numpy", by_numpy)
    bt.enable()
    x = X.clone().requires_grad_()
    for _ in range(60):
        F.silu(x).sum().backward()
    (found,) = [one for one in bt.summary().passes if one.name == "silu"]
    assert found.chosen is not None
    report = str(row_selector(table.named("silu", "")).selector.report())
    assert re.search(r"by numpy +\d", report)


class Silu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x) + 1


@pytest.mark.usefixtures("fixed")
def test_a_plan_is_bound_to_a_row() -> None:
    spy = Spy("silu")
    bt.register("silu", "mine", spy)
    plan = bt.optimize(Silu().eval(), (X,))
    assert "mine" in [one.algorithm for one in plan.explain(X).steps]
    ran = spy.ran
    torch.testing.assert_close(plan(X), Silu()(X))
    assert spy.ran == ran + 1
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    assert torch.equal(bt.load(file)(X), plan(X))
    bt.unregister("silu", "mine")
    torch.testing.assert_close(plan(X), Silu()(X))
    file.seek(0)
    with pytest.raises(
        TorchError, match=r"algorithm 'mine' does not fit .* optimise the model again"
    ):
        bt.load(file)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.__name__)
@pytest.mark.usefixtures("fixed")
def test_a_plan_of_a_faulty_row_computes_what_the_model_does(fault: Any) -> None:
    spy = Spy("silu")

    def mine(pytorch: Any, problem: Any, *operands: Any) -> Any:
        return fault(spy(pytorch, problem, *operands), operands)

    bt.register("silu", "mine", mine)
    with pytest.warns(BestofWarning, match="mine"):
        plan = bt.optimize(Silu().eval(), (X,))
    for _ in range(2):
        torch.testing.assert_close(plan(X), Silu()(X))


@pytest.mark.usefixtures("fixed")
def test_a_row_that_raises_later_leaves_a_plan_whole() -> None:
    spy, falls, fallen = Spy("silu"), [False], []

    def mine(pytorch: Any, problem: Any, *operands: Any) -> Any:
        if falls[0]:
            fallen.append(problem)
            raise ValueError("no more tiles")
        return spy(pytorch, problem, *operands)

    bt.register("silu", "mine", mine)
    plan = bt.optimize(Silu().eval(), (X,))
    falls[0] = True
    with pytest.warns(
        BestofWarning, match="silu .*: mine raised ValueError: no more tiles"
    ) as told:
        check(lambda: plan(X), Silu()(X))
    check(lambda: plan(X), Silu()(X))
    assert (len(told), len(fallen)) == (1, 1)


@pytest.mark.usefixtures("fixed")
def test_a_row_may_be_taken_out_while_it_runs() -> None:
    def mine(pytorch: Any, _problem: Any, x: Tensor) -> Any:
        if any(one.name == "mine" for one in table.named("silu", "").rows):
            bt.unregister("silu", "mine")
        return pytorch(x)

    expected = F.silu(X)
    bt.register("silu", "mine", mine)
    bt.enable()
    assert torch.equal(F.silu(X), expected)
    assert "mine" not in row_selector(table.named("silu", "")).selector.alternative_names


def test_rows_are_measured() -> None:
    spy = Spy("silu")
    bt.register("silu", "mine", spy)
    rows = measure_operations(["silu"], rounds=1, seconds=1e-6)
    assert "mine" in [one.row for one in rows]


def test_evidence_belongs_to_the_name_and_the_code() -> None:
    store = MemoryStore()
    bestof.use_store(store)

    def one(pytorch: Any, _problem: Any, x: Tensor) -> Any:
        return pytorch(x)

    def other(pytorch: Any, _problem: Any, x: Tensor) -> Any:
        return pytorch(x) * 1.0

    bt.register("silu", "mine", one)
    bt.enable()
    for _ in range(40):
        F.silu(X)
    (record,) = store.records("silu")
    versions = {one.alternative: one.version for one in record.evidence}
    assert record.decision is not None
    bt.unregister("silu", "mine")
    bt.register("silu", "mine", other)
    trials = bt.summary().trials
    for _ in range(40):
        F.silu(X)
    (record,) = store.records("silu")
    again = {one.alternative: one.version for one in record.evidence}
    assert again["as is"] == versions["as is"]
    assert again["mine"] != versions["mine"]
    assert bt.summary().trials > trials


@pytest.mark.usefixtures("fixed")
def test_a_grid_is_a_row_for_each_combination() -> None:
    given: list[tuple[int, int]] = []

    def mine(pytorch: Any, _problem: Any, x: Tensor, *, tile: int, unroll: int) -> Any:
        given.append((tile, unroll))
        return pytorch(x)

    bt.register("silu", "mine", mine, grid={"tile": [16, 32], "unroll": [1, 2]})
    names = [row.name for row in table.named("silu", "").rows if row.registered]
    assert names == [f"mine tile={tile} unroll={unroll}" for tile in (16, 32) for unroll in (1, 2)]
    bestof.use_policy(f"fixed:{names[2]}")
    bt.enable()
    F.silu(X)
    assert set(given) == {(32, 1)}
    bt.unregister("silu", "mine")
    assert not [row for row in table.named("silu", "").rows if row.registered]


@pytest.mark.usefixtures("fixed")
def test_an_own_bound_is_held() -> None:
    def rough(pytorch: Any, _problem: Any, x: Tensor) -> Any:
        return pytorch(x) * (1 + 1e-3)

    expected = F.silu(X)
    bt.register("silu", "mine", rough, bound=2e-3)
    bt.enable()
    assert not torch.equal(F.silu(X), expected)
    bt.unregister("silu", "mine")
    bt.register("silu", "mine", rough, bound=lambda _problem: 1e-4)
    with pytest.warns(BestofWarning, match="wrong result: off by"):
        assert torch.equal(F.silu(X), expected)


def tiled(pytorch: Any, _problem: Any, x: Tensor, *, tile: int) -> Any:
    return pytorch(x)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "operation": ({"operation": "silo"}, "no operation 'silo'; .*did you mean 'silu'"),
    "taken": ({"name": "native"}, "has a row 'native'; take another name"),
    "comma": ({"name": "a,b"}, "name: expected a text without commas"),
    "function": ({"function": 3}, "function: expected a function; got 3"),
    "supports": ({"supports": True}, "supports: expected a function; got True"),
    "dtypes": ({"dtypes": ["float31"]}, "dtypes: expected dtypes"),
    "bound": ({"bound": 0}, "bound: expected a number above 0"),
    "unbounded": ({"bound": float("inf")}, "bound: expected a number above 0"),
    "lines": ({"name": "a\nb"}, "name: expected a text .* on one line"),
    "twice": ({"grid": {"tile": [1, 1]}, "function": tiled}, "'tile' has a value twice"),
    "accuracy": ({"accuracy": "fast"}, "accuracy: expected one of exact"),
    "grid": ({"grid": {"tile": 16}}, "grid: expected a list of values"),
    "keyword": ({"grid": {"tile": [16]}}, "grid: the function takes other keywords: .*tile"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_refused_before_anything_changes(case: str) -> None:
    given, told = WRONG[case]
    before = table.named("silu", "").rows
    arguments: dict[str, Any] = {"operation": "silu", "name": "mine", "function": by_numpy}
    with pytest.raises(InvalidArgument, match=told):
        bt.register(**{**arguments, **given})
    assert table.named("silu", "").rows == before


def test_what_is_not_registered_cannot_be_taken_out() -> None:
    with pytest.raises(InvalidArgument, match="there is no such row; registered are none"):
        bt.unregister("silu", "native")
