"""Planted kernels that are wrong: none is adopted, no caller gets their results, and one warning
says why. Right ones pass, whatever their operands are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bestof.errors import BestofWarning
from bestof.selection import BestOf, Fixed, use_policy
from bestof.selection.state.journal import DisqualificationEntry
from bestof.torch.backends.device import CPU
from bestof.torch.dispatch.convolution.decisions import SHARED
from bestof.torch.dispatch.convolution.layer import ConvolutionLayer
from bestof.torch.dispatch.override import Override
from bestof.torch.ops.attention.backward import AttentionBackward
from bestof.torch.ops.attention.forward import AttentionForward
from bestof.torch.ops.bound import DIRECT
from bestof.torch.ops.combination import LEAST
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.passes import PASSES
from bestof.torch.ops.convolution.problem import ConvProblem, LayerProblem
from bestof.torch.ops.convolution.promise import promise
from bestof.torch.ops.convolution.pytorch_conv import pytorch_conv
from bestof.torch.ops.pooling.max_pool2d import MaxPool2d, MaxPoolProblem, as_is
from bestof.torch.ops.product.problem import ProductProblem
from bestof.torch.ops.product.product import Product
from bestof.torch.ops.row import Row
from bestof.torch.rows.operation_verifier import OperationVerifier

CALLS = 30
Fault = Callable[[Tensor, Sequence[Tensor]], Any]


def _last(right: Tensor, value: float) -> Tensor:
    wrong = right.clone()
    wrong[(-1,) * wrong.dim()] = value
    return wrong


def _changes(right: Tensor, operands: Sequence[Tensor]) -> Tensor:
    operands[0].mul_(2.0)
    return right


def _changes_unseen(right: Tensor, operands: Sequence[Tensor]) -> Tensor:
    operands[0].detach().view(-1).numpy()[0] += 1.0  # the version stands still
    return right


FAULTS: dict[str, Fault] = {
    "constants": lambda right, _: torch.ones_like(right),
    "zeros": lambda right, _: torch.zeros_like(right),
    "nothing written": lambda right, _: torch.full_like(right, torch.nan),
    "one element": lambda right, _: _last(right, 3.0 + float(right.flatten()[-1])),
    "one NaN": lambda right, _: _last(right, torch.nan),
    "one infinity": lambda right, _: _last(right, torch.inf),
    "another order": lambda right, _: right.flip(-1),
    "another scale": lambda right, _: right * 1.1,
    "parts exchanged": lambda right, _: right.roll(1, 0),
    "another dtype": lambda right, _: right.double(),
    "another shape": lambda right, _: right[..., :-1],
    "no tensor": lambda _right, _: None,
    "a changed operand": _changes,
    "an operand that is changed unseen": _changes_unseen,
}
TINY: dict[str, Fault] = {"off by 1e-4": lambda right, _: right * (1 + 1e-4)}

GEOMETRIES = {
    "of a batch": ((8, 8, 9, 10), (16, 8, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "plain": ((2, 8, 9, 10), (16, 8, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "strided": ((2, 8, 9, 10), (4, 8, 3, 3), (2, 1), (0, 1), (1, 1), 1),
    "dilated": ((1, 6, 12, 12), (4, 6, 3, 2), (1, 1), (1, 1), (2, 2), 1),
    "grouped": ((2, 8, 7, 7), (12, 2, 3, 3), (1, 1), (1, 1), (1, 1), 4),
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def convolution(geometry: str, dtype: torch.dtype = torch.float32) -> tuple[ConvProblem, Any]:
    x_shape, w_shape, *rest = GEOMETRIES[geometry]
    x, w = random(*x_shape).to(dtype), random(*w_shape, seed=1).to(dtype)
    return ConvProblem.of(x, w, False, *rest), (x, w)  # type: ignore[arg-type]  # as they stand


def tensors_of(direction: str, problem: ConvProblem, x: Tensor, w: Tensor) -> tuple[Any, ...]:
    gradient = random(*problem.output_shape, seed=2).to(x.dtype)
    return {
        "forward": (x, w, None),
        "input gradient": (gradient, w),
        "weight gradient": (gradient, x),
    }[direction]


def hold_right(
    selector: BestOf, name: str, call: Callable[[], Any], right: Any, tolerance: float
) -> None:
    """All calls are right, and one warning says that the planted alternative is not."""
    with pytest.warns(BestofWarning) as warned:
        results = [call() for _ in range(CALLS)]
    for got in results:
        for one, expected in zip(_all(got), _all(right), strict=True):
            torch.testing.assert_close(one, expected, rtol=tolerance, atol=tolerance)
    (message,) = {str(one.message) for one in warned}
    assert f"{name!r} was disqualified: " in message
    (problem,) = selector.report().problems
    assert problem.decision != name


def _all(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def planted(fault: Fault) -> Callable[..., Any]:
    """Return the function of a row that runs the first one, with a fault."""

    def wrong(right: Tensor, operands: Sequence[Tensor | None]) -> Any:
        return fault(right, [one for one in operands if one is not None])

    return wrong


@pytest.mark.parametrize("fault", [*FAULTS, *TINY])
@pytest.mark.parametrize("operation", ["mm", "addmm", "bmm"])
def test_products(operation: str, fault: str) -> None:
    wrong = planted({**FAULTS, **TINY}[fault])
    product = Product()
    first = product.rows[0]

    def function(by: Any, problem: Any, bias: Any, a: Tensor, b: Tensor) -> Any:
        return wrong(first.function(by, problem, bias, a, b), (a, b, bias))

    batch = (2,) if operation == "bmm" else ()
    bias = random(24) if operation == "addmm" else None
    a, b = random(*batch, 32, 40), random(*batch, 40, 24, seed=1)
    product.rows = (first, Row("planted", function))
    override = Override(product)
    problem = ProductProblem.of(operation, a, b, "float32")
    right = first.function(override.original, problem, bias, a, b)
    hold_right(
        override.selector, "planted", lambda: override.selector(problem, bias, a, b), right, 1e-5
    )


def planted_row(one: Conv2dPass, function: Callable[..., Any]) -> Pass:
    return Row("planted", function, bound=promise(DIRECT, one.direction), accuracy="float32")


def selector_of(one: Conv2dPass, *rows: Pass) -> BestOf:
    return Override(type(one)(CPU, rows)).selector


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("catalogue", PASSES, ids=lambda one: one.direction)
@pytest.mark.parametrize(
    ("geometry", "dtype"),
    [("of a batch", torch.float32), ("plain", torch.float32), ("plain", torch.bfloat16)],
)
def test_passes_of_convolutions(
    catalogue: Conv2dPass, fault: str, geometry: str, dtype: torch.dtype
) -> None:
    if dtype is torch.bfloat16 and fault == "an operand that is changed unseen":
        pytest.skip("NumPy has no bfloat16")
    wrong = planted(FAULTS[fault])
    first = catalogue.rows[0]

    def function(by: Any, *arguments: Any) -> Any:
        return wrong(first.function(by, *arguments), arguments[1:])

    selector = selector_of(catalogue, first, planted_row(catalogue, function))
    problem, given = convolution(geometry, dtype)
    tensors = tensors_of(catalogue.direction, problem, *given)
    right = first.function(pytorch_conv(), problem, *tensors).clone()
    hold_right(selector, "planted", lambda: selector(problem, *tensors), right, 1e-6)


def attention_call(
    kind: Any, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Override, Any, tuple[Any, ...]]:
    """Return an override of one pass, the problem of a call, and its operands."""
    tensors: tuple[Tensor, ...] = (q, k, v)
    if kind is AttentionBackward:
        out, logsumexp = Override(AttentionForward()).original(q, k, v, 0.0, False, None, None)
        gradient = random(2, 4, 24, 16, seed=3).to(q.dtype)
        tensors = (gradient, q, k, v, out, logsumexp)
    override = Override(kind())
    call = override.operation.call("float32", *tensors, 0.0, False, None, None)
    assert call is not None
    return override, call.problem, call.operands


@pytest.mark.parametrize("fault", ["constants", "one NaN", "another scale", "a changed operand"])
@pytest.mark.parametrize("kind", [AttentionForward, AttentionBackward])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention(kind: Any, fault: str, dtype: torch.dtype) -> None:
    class Planted(kind):  # type: ignore[misc]  # one of two classes
        def __init__(self) -> None:
            super().__init__()
            first, native, *_ = self.rows

            def function(*given: Any) -> Any:
                results = list(first.function(*given))
                results[0] = FAULTS[fault](results[0], given[2:-2])
                return tuple(results)

            self.rows = (first, replace(native, function=function))

    q, k, v = (random(2, 4, 24, 16, seed=seed).to(dtype) for seed in range(3))
    _, problem, operands = attention_call(kind, q, k, v)
    override = Override(Planted())
    right = override.operation.rows[0].function(override.original, problem, *operands)
    hold_right(
        override.selector,
        "native",
        lambda: override.selector(problem, *operands),
        right,
        1e-6,
    )


@pytest.mark.parametrize(
    "fault", ["constants", "one NaN", "an operand that is changed unseen", "another shape"]
)
def test_maximum_pooling(fault: str) -> None:
    def planted(original: Any, problem: MaxPoolProblem, input: Tensor) -> Any:
        maxima, indices = as_is(original, problem, input)
        return FAULTS[fault](maxima, (input,)), indices

    class Planted(MaxPool2d):
        rows = (MaxPool2d.rows[0], replace(MaxPool2d.rows[1], function=planted))

    override = Override(Planted())
    x = random(1, 4, 8, 8)
    problem = MaxPoolProblem(tuple(x.shape), (2, 2), (2, 2), (0, 0), (1, 1), False, "float32", 1)
    right = as_is(override.original, problem, x)
    hold_right(
        override.selector, "channels last", lambda: override.selector(problem, x), right, 0.0
    )


@pytest.mark.parametrize("stage", [0, 1])
def test_im2row_with_a_kept_matrix(stage: int) -> None:
    class Planted(ConvolutionLayer):
        def _shared_forward(self, *args: Any) -> Any:
            right = super()._shared_forward(*args)
            return right if stage else right + 1.0

        def _shared_backward(self, *args: Any) -> Any:
            right = super()._shared_backward(*args)
            return (right[0], right[1] * 1.01, right[2]) if stage else right

    use_policy(OneOf(SHARED))
    layer = Planted(tuple(map(Override, PASSES)))
    problem, (x, w) = convolution("plain")
    whole = LayerProblem(problem, True, True)
    gradient = random(*problem.output_shape, seed=2)
    mask = (True, True, False)
    expected = layer._joint_forward(whole, x, w, None)
    gradients = layer._joint_backward(whole, gradient, x, w, "channels_first", mask)[:2]

    def step() -> tuple[Tensor, ...]:
        out = layer.layer(0, whole, x, w, None)
        return out, *layer.layer(1, whole, gradient, x, w, "channels_first", mask)[:2]

    with pytest.warns(BestofWarning, match="'shared im2row' was disqualified: wrong result"):
        steps = [step() for _ in range(5)]
    for got in steps:
        torch.testing.assert_close(got, (expected, *gradients), rtol=1e-4, atol=1e-4)
    assert layer.decisions.forward(whole, problem)[0] != SHARED


class OneOf:
    """Chooses one alternative where it applies, else the first."""

    def __init__(self, name: str) -> None:
        self._name = name

    def start(self, alternatives: Sequence[str]) -> Any:
        name = self._name if self._name in alternatives else alternatives[0]
        return Fixed(name).start(alternatives)


OPERANDS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "of one sign": torch.abs,
    "bytes": lambda x: (x.abs() * 80).round(),
    "with a large offset": lambda x: x + 1e3,
    "half zeros": torch.relu,
    "zeros": torch.zeros_like,
    "one element only": lambda x: x * (torch.arange(x.numel()).reshape(x.shape) == 5),
    "huge": lambda x: x * 1e18,
    "tiny": lambda x: x * 1e-18,
    "with NaN": lambda x: torch.where(torch.arange(x.numel()).reshape(x.shape) == 7, torch.nan, x),
    "with an infinity": lambda x: torch.where(
        torch.arange(x.numel()).reshape(x.shape) == 7, torch.inf, x
    ),
}


@pytest.mark.parametrize("catalogue", PASSES, ids=lambda one: one.direction)
@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_right_rows_pass(catalogue: Conv2dPass, kind: str, geometry: str) -> None:
    verifier = OperationVerifier(catalogue, pytorch_conv())
    problem, (x, w) = convolution(geometry)
    change = OPERANDS[kind]
    tensors = tensors_of(catalogue.direction, problem, change(x), w)
    if catalogue.direction == "input gradient":
        tensors = (change(tensors[0]), *tensors[1:])
    for row in catalogue.applying(problem):
        expected = verifier.expect(0, (problem, *tensors))
        got = row.function(pytorch_conv(), problem, *tensors)
        verdict = verifier.judge(row.name, 0, (problem, *tensors), expected, got)
        assert (row.name, verdict.wrong, verdict.reference_wrong) == (row.name, None, None)
        assert verdict.answer is got


def test_float64_decides_that_pytorchs_own_result_is_wrong() -> None:
    catalogue = PASSES[0]
    first, other = catalogue.rows[0], catalogue.rows[2]

    def forgets(by: Any, *arguments: Any) -> Tensor:
        result = first.function(by, *arguments)
        return torch.zeros_like(result) if result.dtype is torch.float32 else result

    selector = selector_of(catalogue, Row(first.name, forgets), other)
    problem, (x, w) = convolution("plain")
    right = first.function(pytorch_conv(), problem, x, w, None)
    with pytest.warns(BestofWarning, match="'as is' was disqualified: wrong result"):
        results = [selector(problem, x, w, None) for _ in range(CALLS)]
    for got in results[1:]:
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


def test_zero_weights_do_not_hide_a_wrong_kernel() -> None:
    catalogue = PASSES[0]
    first = catalogue.rows[0]
    broken = planted_row(catalogue, lambda by, *given: 0 * first.function(by, *given))
    selector = selector_of(catalogue, first, broken)
    problem, (x, w) = convolution("plain")
    state = torch.get_rng_state()
    with pytest.warns(BestofWarning, match="'planted' was disqualified"):
        assert not any(selector(problem, x, torch.zeros_like(w), None).any() for _ in range(CALLS))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("alike", ["values", "keys", "queries"])
def test_gradients_of_attention_that_cancel_disqualify_nothing(
    alike: str, dtype: torch.dtype
) -> None:
    q, k, v = (random(2, 4, 24, 16, seed=seed).to(dtype) for seed in range(3))
    constant = torch.ones_like(q)
    q, k, v = (
        constant if alike == name else one
        for name, one in (("queries", q), ("keys", k), ("values", v))
    )
    override, problem, operands = attention_call(AttentionBackward, q, k, v)
    for _ in range(CALLS):
        override.selector(problem, *operands)
    entries = override.selector.journal.entries()
    assert not any(isinstance(one, DisqualificationEntry) for one in entries)


def test_pytorchs_own_kernel_that_is_wrong_for_whole_calls_only_is_found() -> None:
    catalogue = PASSES[0]
    first, other = catalogue.rows[0], catalogue.rows[2]

    def forgets(by: Any, problem: ConvProblem, *tensors: Any) -> Tensor:
        result = first.function(by, problem, *tensors)
        return result if len(result) < LEAST else torch.zeros_like(result)

    selector = selector_of(catalogue, Row(first.name, forgets), other)
    problem, (x, w) = convolution("of a batch")
    right = first.function(pytorch_conv(), problem, x, w, None)
    with pytest.warns(BestofWarning, match="'as is' was disqualified: wrong result"):
        results = [selector(problem, x, w, None) for _ in range(CALLS)]
    for got in results[1:]:
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("catalogue", PASSES, ids=lambda one: one.direction)
def test_pytorch_computes_one_part_in_a_comparison(catalogue: Conv2dPass) -> None:
    computed: list[tuple[int, ...]] = []

    def first(by: Any, problem: ConvProblem, *tensors: Any) -> Tensor:
        computed.append((problem.input_shape[0], problem.weight_shape[0]))
        result: Tensor = catalogue.rows[0].function(by, problem, *tensors)
        return result

    verifier = OperationVerifier(
        type(catalogue)(CPU, (Row("as is", first), *catalogue.rows[1:])), pytorch_conv()
    )
    problem, given = convolution("of a batch")
    tensors = tensors_of(catalogue.direction, problem, *given)
    row = catalogue.rows[2]
    expected = verifier.expect(0, (problem, *tensors))
    got = row.function(pytorch_conv(), problem, *tensors)
    assert verifier.judge(row.name, 0, (problem, *tensors), expected, got).answer is got
    assert computed == [(8, 1) if catalogue.direction == "weight gradient" else (1, 16)]
