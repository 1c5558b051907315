"""What a program sees of a call is what it sees without bestof, settled or not.

Settled calls are answered in C++, unsettled ones in Python. The two must not differ in what they
notice: traces, modes, transforms, subclasses, profilers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from observed_operations import OPERATIONS, Operands, observers
from torch import Tensor
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.selection import Fixed, use_policy
from bestof.selection.policies.policy import Search
from bestof.torch.backends import _shim
from bestof.torch.dispatch.overrides import convolution_override, operation_overrides
from bestof.torch.ops import table
from bestof.torch.ops.activation import activation
from bestof.torch.ops.attention.attention import Attention
from bestof.torch.ops.guards import GUARDS
from bestof.torch.ops.norm import group_norm_backward, layer_norm_problem
from bestof.torch.ops.pooling import image
from bestof.torch.ops.product.product import Product
from bestof.torch.ops.softmax import softmax

STATES = {
    "unsettled": (),
    "as is": ("as is",),
    "native": (
        *("native convgemm", "native blocked", "native", "native transposition"),
        "planes: native convgemm",
    ),
    "packed": ("native winograd4", "native blocked packed", "planes: native winograd4"),
}
# Whether calls are observed right is asked here. Results of other operands differ by more than a
# tenth of the largest; the bounds of all algorithms are far below this.
TOLERANCE = 2.0**-9


class Order:
    """Chooses the first of these that there is."""

    def __init__(self, *names: str) -> None:
        self._names = (*names, "independent", "as is")

    def start(self, alternatives: Sequence[str]) -> Search:
        return Fixed(next(one for one in self._names if one in alternatives)).start(alternatives)


@pytest.fixture(autouse=True)
def small_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Product, "least", 2**17)
    monkeypatch.setattr(Attention, "least", 1)
    monkeypatch.setattr(image, "LEAST_BYTES", 1)
    for kind in {type(one) for one in table.OPERATIONS if one.rule == "elements"}:
        monkeypatch.setattr(kind, "least", 1)
    for module in activation, group_norm_backward, layer_norm_problem, softmax:
        monkeypatch.setattr(module, "LEAST", 1)


def seen(observe: Any, run: Any, operands: Operands) -> Any:
    try:
        return observe(run, operands)
    except Exception as error:
        return type(error).__name__


def hold(got: Any, expected: Any) -> None:
    ours, form = pytree.tree_flatten(got)
    theirs, expected_form = pytree.tree_flatten(expected)
    assert form == expected_form, (got, expected)
    for one, wanted in zip(ours, theirs, strict=True):
        if not isinstance(wanted, Tensor):
            assert one == wanted
            continue
        assert one.dtype is wanted.dtype
        assert one.shape == wanted.shape
        unit = max(TOLERANCE, 4 * torch.finfo(wanted.dtype).eps)
        apart = unit * max(1.0, wanted.detach().abs().max().item())
        assert ((one.detach() - wanted.detach()).abs() <= apart).all()


def marks(observer: str) -> list[pytest.MarkDecorator]:
    """All traces stay in the quick suite: they are what a settled call can miss."""
    if observer.endswith("*"):
        return [pytest.mark.long]
    return [] if "trace" in observer else [pytest.mark.long(every=10)]


# Operations whose settled forward calls are answered in Python, or by PyTorch without a question.
BY_PYTHON = ("pooling", "-D convolution", "transposed convolution", "group norm")

# PyTorch 2.13 reads memory of others for such a query: each call returns other numbers.
UNDEFINED = ("attention", "a tensor of zeros")
CASES = [
    pytest.param(name, observer, marks=marks(observer))
    for name, operation in OPERATIONS.items()
    for observer in observers(operation)
    if (name, observer) != UNDEFINED
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("name", "observer"), CASES)
def test_a_program_sees_the_same(name: str, observer: str, state: str) -> None:
    operation = OPERATIONS[name]
    operands, observe = operation.operands(), observers(operation)[observer]
    expected = seen(observe, operation.run, operands)
    if STATES[state]:
        use_policy(Order(*STATES[state]))
    bt.enable()
    if state != "unsettled":
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                for _ in range(4):
                    operation.run(*operands)
    # The observation has shapes of its own, for example a batch; repeated, they settle.
    for _ in range(2 if observer.endswith("*") else 5):
        hold(seen(observe, operation.run, operands), expected)


@pytest.mark.parametrize("name", [one for one in OPERATIONS if not one.endswith(BY_PYTHON)])
@pytest.mark.parametrize("state", ["as is", "native", "packed"])
def test_the_settled_states_are_answered_in_cpp(
    name: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the test above would ask Python twice."""
    operation = OPERATIONS[name]
    operands = operation.operands()
    use_policy(Order(*STATES[state]))
    bt.enable()
    override = convolution_override()
    assert override is not None
    met: list[object] = []
    find = override.layer.find_forward
    monkeypatch.setattr(
        override.layer, "find_forward", lambda *given: (met.append(given), find(*given))[1]
    )

    def asked() -> int:
        shims = [one.shim for one in operation_overrides()]
        return len(met) + sum(0 if one is None else one.asked for one in shims)

    with torch.no_grad():
        for _ in range(6):
            operation.run(*operands)
        before = asked()
        assert before > 0
        operation.run(*operands)
    assert asked() == before


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("state", STATES)
def test_deterministic_results_have_pytorchs_bits(name: str, state: str) -> None:
    operation = OPERATIONS[name]
    operands = operation.operands()
    expected = operation.run(*operands)
    if STATES[state]:
        use_policy(Order(*STATES[state]))
    bt.enable()
    with torch.no_grad():
        for _ in range(5):
            operation.run(*operands)
        torch.use_deterministic_algorithms(True)
        try:
            for _ in range(3):
                assert torch.equal(operation.run(*operands), expected)
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_both_ways_have_the_same_guards() -> None:
    with bt.enabled():  # finds the guards of PyTorch's library
        pass
    own = {one.name: one.is_up for one in GUARDS if one.of_kernels}
    assert list(_shim.guards()) == list(own)
    up: dict[str, dict[str, bool]] = {}

    def note(name: str) -> None:
        up[name] = _shim.guards()
        assert up[name] == {one: is_up() for one, is_up in own.items()}

    note("none")
    torch.use_deterministic_algorithms(True)
    note("deterministic")
    torch.use_deterministic_algorithms(False)

    def traced(x: Tensor) -> Tensor:
        note("traced")
        return x + 1

    torch.jit.trace(traced, (torch.ones(1),), check_trace=False)  # type: ignore[no-untyped-call]
    assert up == {
        name: {one: one == name for one in own} for name in ("none", "deterministic", "traced")
    }
