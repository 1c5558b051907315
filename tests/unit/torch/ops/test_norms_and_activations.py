"""Norms, softmax and activations: every row gives what PyTorch gives, and the rest is PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import bestof.torch as integration
from bestof.selection import use_policy
from bestof.torch.backends.shim import ASKED_EVERY
from bestof.torch.dispatch.override import Override
from bestof.torch.dispatch.overrides import operation_override, operation_overrides
from bestof.torch.ops.operation import Call

CHANNELS_LAST = torch.channels_last


class Case(NamedTuple):
    """A function of tensors, and the operations of its passes; None: PyTorch answers."""

    run: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    forward: str | None
    backward: str | None
    images: bool = False


def layer(axes: int) -> Callable[..., Tensor]:
    return lambda x, *rest: functional.layer_norm(x, x.shape[-axes:], *rest)


def group(groups: int) -> Callable[..., Tensor]:
    return lambda x, *rest: functional.group_norm(x, groups, *rest)


def softmax(axis: int) -> Callable[..., Tensor]:
    return lambda x: torch.softmax(x, axis)


def tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


CASES = {
    "layer norm": Case(layer(1), ((7, 5, 33), (33,), (33,)), "layer norm", "layer norm backward"),
    "without weight": Case(layer(1), ((70, 512),), "layer norm", "layer norm backward"),
    "weight only": Case(layer(1), ((3, 4), (4,)), "layer norm", "layer norm backward"),
    "two axes": Case(
        layer(2), ((131, 9, 31), (9, 31), (9, 31)), "layer norm", "layer norm backward"
    ),
    "group norm": Case(
        group(4), ((3, 12, 7, 5), (12,), (12,)), None, "group norm backward", images=True
    ),
    "groups without weight": Case(
        group(1), ((2, 9, 13, 11),), None, "group norm backward", images=True
    ),
    "groups of one": Case(
        group(33), ((1, 33, 17, 19), (33,), (33,)), None, "group norm backward", images=True
    ),
    "rows": Case(softmax(-1), ((6, 5, 33),), "softmax", None),
    "many rows": Case(softmax(1), ((300, 197),), "softmax", None),
    "columns": Case(softmax(1), ((3, 19, 21),), "softmax", None),
    "first axis": Case(softmax(0), ((5, 3, 4, 2),), "softmax", None),
    "gelu": Case(functional.gelu, ((9, 37),), "gelu", "gelu backward"),
    "tanh": Case(tanh, ((9, 37),), "gelu", "gelu backward"),
    "silu": Case(functional.silu, ((130, 300),), "silu", "silu backward"),
    "gelu of images": Case(functional.gelu, ((2, 5, 6, 7),), "gelu", "gelu backward", images=True),
    "silu of images": Case(functional.silu, ((2, 5, 6, 7),), "silu", "silu backward", images=True),
}


def operands(case: Case, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = [2 * torch.randn(shape, generator=generator) for shape in case.shapes]
    if case.images:
        found[0] = found[0].contiguous(memory_format=CHANNELS_LAST)
    return [one.to(dtype) for one in found]


def override(name: str) -> Override:
    found = operation_override(name)
    assert found is not None
    return found


def decisions(name: str) -> list[str]:
    return [one.decision or "" for one in override(name).selector.report().problems]


def hold(got: Tensor, expected: Tensor, unit: float = 2.0**-24) -> None:
    """Compare with PyTorch. Bounds are tested in tests/numerics."""
    assert got.shape == expected.shape
    assert got.stride() == expected.stride()
    assert got.dtype is expected.dtype
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.isinf(), expected.isinf())
    left, right = (one.detach().nan_to_num(0.0, 0.0, 0.0).double() for one in (got, expected))
    largest = max(1.0, float(right.abs().max())) if right.numel() else 1.0
    assert bool(((left - right).abs() <= 64 * unit * largest).all())


def marked(result: Tensor) -> Tensor:
    return torch.where(result.isfinite(), result, torch.nan)


def gradients(case: Case, given: list[Tensor], wanted: list[bool]) -> list[Tensor]:
    leaves = [one.detach().requires_grad_(take) for one, take in zip(given, wanted, strict=True)]
    result = case.run(*leaves)
    generator = torch.Generator().manual_seed(9)
    gradient = torch.randn(result.shape, generator=generator).to(result.dtype)
    gradient = gradient.contiguous(
        memory_format=CHANNELS_LAST if case.images else torch.contiguous_format
    )
    inputs = [one for one in leaves if one.requires_grad]
    return [result, *torch.autograd.grad(result, inputs, gradient)]


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    yield
    integration.disable()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("row", ["as is", "native"])
@pytest.mark.parametrize("name", CASES)
def test_every_row_gives_pytorchs_results(name: str, row: str, threads: int) -> None:
    case, before = CASES[name], torch.get_num_threads()
    given = operands(case)
    everything = [True] * len(given)
    torch.set_num_threads(threads)
    try:
        expected = gradients(case, given, everything)
        use_policy(f"fixed:{row}")
        integration.enable()
        for _ in range(3):
            for got, right in zip(gradients(case, given, everything), expected, strict=True):
                hold(got, right)
    finally:
        torch.set_num_threads(before)
    for operation in (case.forward, case.backward):
        if operation is not None:
            assert decisions(operation) == [row]
            assert override(operation).selector.settled_calls > 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_some_operands_alone(name: str) -> None:
    case = CASES[name]
    given = operands(case)
    result, *expected = gradients(case, given, [True] * len(given))
    use_policy("fixed:native")
    integration.enable()
    for only, right in enumerate(expected):
        if case.images and only:
            # PyTorch 2.13 reads a null pointer for gradients of group norm in channels last
            # without that of the input, and so does the first call, which is compared with it.
            continue
        got, gradient = gradients(case, given, [k == only for k in range(len(given))])
        hold(got, result)
        hold(gradient, right)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("state", [torch.no_grad, torch.inference_mode])
def test_inference(name: str, state: Any) -> None:
    case = CASES[name]
    given = operands(case)
    with state():
        expected = case.run(*given)
        use_policy("fixed:native")
        integration.enable()
        got = case.run(*given)
        assert got.is_inference() == expected.is_inference()
        hold(got, expected)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["layer norm", "group norm", "rows", "gelu", "silu"])
def test_calls_that_look_alike_have_one_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shim keeps each kernel that it was ever given: a call may still use it."""
    met: list[tuple[str, Any]] = []
    passes = Override.passes

    def noted(of: Override, shim: Any, row: Any, native: Any, *call: Any) -> bool:
        met.append((of.operation.name, native))
        return passes(of, shim, row, native, *call)

    monkeypatch.setattr(Override, "passes", noted)
    case = CASES[name]
    given = operands(case)
    use_policy("fixed:native")
    integration.enable()
    for _ in range(4 * ASKED_EVERY):
        gradients(case, given, [True] * len(given))
    operations = {operation for operation, _ in met}
    assert len(met) > 2 * len(operations)
    assert len({id(native) for _, native in met}) == len(operations)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", CASES)
def test_second_derivatives(name: str) -> None:
    case = CASES[name]

    def second() -> list[Tensor]:
        leaves = [one.requires_grad_() for one in operands(case)]
        (first,) = torch.autograd.grad(
            case.run(*leaves).square().sum(), leaves[:1], create_graph=True
        )
        found = torch.autograd.grad(first.square().sum(), leaves, allow_unused=True)
        return [one for one in found if one is not None]

    expected = second()
    use_policy("fixed:native")
    integration.enable()
    for got, right in zip(second(), expected, strict=True):
        hold(got, right, 2.0**-20)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e30, -1e30])
@pytest.mark.parametrize("name", ["rows", "columns", "gelu", "tanh", "silu", "silu of images"])
def test_numbers_lie_where_pytorch_has_them(name: str, bad: float) -> None:
    """With AVX-512, PyTorch's GELU of infinity is NaN in whole vectors, and else infinity."""
    case = CASES[name]
    (x,) = operands(case)
    for at in (0, 5, x.numel() - 1):
        given = x.clone(memory_format=torch.preserve_format)
        given[tuple(torch.unravel_index(torch.tensor(at), x.shape))] = bad
        integration.disable()
        expected = gradients(case, [given], [True])
        use_policy("fixed:native")
        integration.enable()
        for got, right in zip(gradients(case, [given], [True]), expected, strict=True):
            hold(marked(got), marked(right))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", ["input", "gradient"])
@pytest.mark.parametrize("name", ["layer norm", "two axes", "group norm"])
def test_what_is_finite_in_norms_is_finite_in_pytorch(name: str, which: str, bad: float) -> None:
    """Of a row with an infinity, formulas give NaN or an infinity."""
    case = CASES[name]
    given = operands(case)
    if which == "input":
        given[0].select(0, 0).select(0, 1)[..., 2] = bad

    def run() -> list[Tensor]:
        leaves = [one.detach().requires_grad_() for one in given]
        result = case.run(*leaves)
        gradient = result.detach().clone()
        if which == "gradient":
            gradient.select(0, 0).select(0, 1)[..., 2] = bad
        return [result, *torch.autograd.grad(result, leaves, gradient)]

    expected = run()
    use_policy("fixed:native")
    integration.enable()
    for _ in range(2):
        for got, right in zip(run(), expected, strict=True):
            finite = right.isfinite()
            assert torch.equal(got.isfinite(), finite)
            hold(torch.where(finite, got, 0.0), torch.where(finite, right, 0.0))
    assert decisions(case.backward or "") == ["native"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["gelu", "tanh", "gelu of images"])
def test_gelu_of_bfloat16(name: str) -> None:
    case = CASES[name]
    given = operands(case, torch.bfloat16)
    expected = gradients(case, given, [True])
    use_policy("fixed:native")
    integration.enable()
    for got, right in zip(gradients(case, given, [True]), expected, strict=True):
        hold(got, right, 2.0**-14)
    assert decisions("gelu") == ["native"]


LEFT = {
    "other type": (layer(1), [torch.randn(4, 8).double()]),
    "mixed types": (layer(1), [torch.randn(4, 8).bfloat16(), torch.ones(8)]),
    "half": (functional.silu, [torch.randn(4, 8).bfloat16()]),
    "rows apart": (layer(1), [torch.randn(4, 16)[:, ::2]]),
    "columns": (softmax(0), [torch.randn(8, 6).t()]),
    "every other": (functional.gelu, [torch.randn(6, 8)[::2]]),
    "empty": (functional.gelu, [torch.empty(0, 4)]),
    "empty rows": (layer(1), [torch.empty(0, 4)]),
    "channels first": (group(2), [torch.randn(2, 4, 3, 3)]),
    "number": (softmax(0), [torch.tensor(3.0)]),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", LEFT)
def test_the_rest_is_pytorchs_own(name: str) -> None:
    run, given = LEFT[name]
    expected = run(*given)
    use_policy("fixed:native")
    integration.enable()
    got = run(*given)
    assert got.stride() == expected.stride()
    assert torch.equal(got, expected)
    for one in operation_overrides():
        assert one.selector.report().problems == ()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "run",
    [
        lambda x: functional.layer_norm(x, (7,)),
        lambda x: functional.layer_norm(x, (8,), torch.ones(7)),
        lambda x: torch.softmax(x, 2),
        lambda x: functional.gelu(x, approximate="sine"),
        lambda x: functional.group_norm(x.view(1, 4, 2, 4), 3),
    ],
)
def test_what_pytorch_refuses_it_goes_on_to_refuse(run: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 8)
    with pytest.raises((RuntimeError, IndexError)) as own:
        run(x)
    integration.enable()
    with pytest.raises((RuntimeError, IndexError)) as caught:
        run(x)
    assert (type(caught.value), str(caught.value)) == (type(own.value), str(own.value))


def test_small_tensors_are_not_looked_into() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        integration.enable()
        functional.silu(torch.zeros(2**19 - 1))
        assert override("silu").selector.report().problems == ()
        functional.silu(torch.zeros(2**19))
        assert len(override("silu").selector.report().problems) == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("small")
def test_exact_results_are_pytorchs_own() -> None:
    x = operands(CASES["gelu"])[0]
    expected = functional.gelu(x)
    use_policy("fixed:native")
    integration.enable({"kernel": {"accuracy": "exact"}})
    assert torch.equal(functional.gelu(x), expected)
    assert override("gelu").selector.report().problems == ()


def hold_judgement(of: Override, call: Call, operation: str) -> None:
    own, native = of.operation.rows
    right = own.function(of.original, call.problem, *call.operands)
    for k in range(len(right) if isinstance(right, tuple | list) else 1):
        got = native.function(of.original, call.problem, *call.operands)
        args = (call.problem, *call.operands)
        assert of.operation.compare(native, of.original, args, right, got).wrong is None
        changed = got if isinstance(got, Tensor) else got[k]
        if changed is None:
            continue
        changed[(-1,) * changed.dim()] += 1e-3 * float(changed.abs().max())
        found = of.operation.compare(native, of.original, args, right, got)
        assert found.wrong is not None, (operation, k)
        assert found.reference_wrong is None


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_result_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element of one result is off by a thousandth of the largest."""
    case = CASES[name]
    integration.enable()
    for operation in filter(None, (case.forward, case.backward)):
        of = override(operation)
        calls: list[Call] = []
        asked = of.operation.call

        def noted(*given: Any, asked: Any = asked, calls: Any = calls, **rest: Any) -> Any:
            calls.append(asked(*given, **rest))
            return calls[-1]

        monkeypatch.setattr(of.operation, "call", noted)
        given = operands(case)
        gradients(case, given, [True] * len(given))
        (call,) = calls
        with torch.no_grad():
            hold_judgement(of, call, operation)
