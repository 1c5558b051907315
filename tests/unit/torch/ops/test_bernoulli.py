"""Bernoulli numbers: PyTorch's bits, its generator's state, and its order among other numbers."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from test_max_pool2d import Order
from torch import Tensor, default_generator
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import bestof.torch as integration
from bestof.selection import use_policy
from bestof.torch.dispatch.override import Override
from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.ops.random import bernoulli
from bestof.torch.ops.random.bernoulli import Bernoulli, is_serial

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
serial = pytest.mark.skipif(not is_serial(), reason="PyTorch draws by MKL on this processor")


def override() -> Override:
    found = operation_override("bernoulli")
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bernoulli, "LEAST", 1)
    monkeypatch.setattr(Bernoulli, "least", 1)


def mixed(x: Tensor, probability: float = 0.3) -> tuple[Tensor, ...]:
    """Return numbers of several kinds, drawn in turn."""
    torch.manual_seed(5)
    first = torch.randn(3)  # leaves half of a pair behind
    drawn = x.clone().bernoulli_(probability)
    words = torch.randint(100, (7,))
    again = x.clone().bernoulli_(1 - probability)
    return first, drawn, words, again, torch.randn(3), torch.rand(5), default_generator.get_state()


@serial
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["as is", "native"])
def test_every_row_gives_the_same_numbers(name: str, dtype: torch.dtype) -> None:
    for shape in ((1,), (623,), (3, 5, 211), (2, 4, 9, 8)):
        x = torch.full(shape, torch.nan, dtype=dtype)
        expected = mixed(x)
        use_policy(Order(name))
        integration.enable()
        for _ in range(3):
            for got, right in zip(mixed(x), expected, strict=True):
                assert got.dtype is right.dtype
                assert torch.equal(got, right)
        assert {one.decision for one in override().selector.report().problems} == {name}
        integration.disable()


@serial
@pytest.mark.parametrize(
    "make",
    {
        "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
        "permuted": lambda x: x.permute(3, 1, 0, 2),
        "one image": lambda x: x[:1].contiguous(memory_format=torch.channels_last),
        "inside": lambda x: x[1:].contiguous()[1:],
    }.values(),
)
def test_numbers_lie_in_the_order_of_memory(make: Any) -> None:
    x = make(torch.zeros(3, 4, 5, 6))
    expected = mixed(x)
    use_policy(Order("native"))
    integration.enable()
    for got, right in zip(mixed(x), expected, strict=True):
        assert torch.equal(got, right)
        assert got.stride() == right.stride()
    assert [one.decision for one in override().selector.report().problems] == ["native"]


@serial
def test_others_are_left_to_pytorch() -> None:
    generator = torch.Generator()
    integers, wide = torch.zeros(64, dtype=torch.int64), torch.zeros(8, 16)

    def draw() -> list[Tensor]:
        torch.manual_seed(2)
        generator.manual_seed(3)
        x = torch.zeros(64)
        gaps = wide.clone()
        gaps[:, ::2].bernoulli_(0.5)
        return [
            integers.clone().bernoulli_(0.5),
            x.bernoulli_(0.5, generator=generator),
            gaps,
            torch.zeros(0).bernoulli_(0.5),
            torch.rand(3),
        ]

    expected = draw()
    integration.enable()
    assert all(map(torch.equal, draw(), expected))
    assert override().selector.report().problems == ()
    for probability in (-0.5, 1.5):
        with pytest.raises(RuntimeError, match="bernoulli_ expects p to be in"):
            torch.zeros(64).bernoulli_(probability)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        torch.zeros(64, requires_grad=True).bernoulli_(0.5)


@serial
def test_dropout_trains_as_without_bestof() -> None:
    x = torch.randn(4, 33, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def train(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)

        def layer(one: Tensor) -> Tensor:
            return functional.dropout(one.to(dtype).tanh(), 0.4)

        y = checkpoint(layer, functional.dropout(x, 0.1), use_reentrant=False)
        (gradient,) = torch.autograd.grad(y.float().square().sum(), x)
        return y.detach(), gradient

    for dtype in (torch.float32, torch.bfloat16):
        expected = train(dtype)
        use_policy(Order("native"))
        integration.enable()
        for _ in range(4):
            assert all(map(torch.equal, train(dtype), expected))
        with torch.inference_mode():
            torch.manual_seed(1)
            drawn = functional.dropout(x, 0.1)
        integration.disable()
        torch.manual_seed(1)
        assert torch.equal(drawn, functional.dropout(x, 0.1))
    assert {one.decision for one in override().selector.report().problems} == {"native"}


@serial
def test_a_draw_of_another_thread_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch then draws for the call: no number of the other thread comes twice."""
    use_policy(Order("native"))
    integration.enable()
    x = torch.zeros(1000)
    x.bernoulli_(0.5)
    torch.manual_seed(4)
    others = torch.rand(5)
    expected = torch.zeros(1000).bernoulli_(0.5)
    state = default_generator.get_state()
    plan, drawn = bernoulli.BernoulliPlan, []

    class Interrupted(plan):  # type: ignore[misc, valid-type]
        __slots__ = ()

        def run(self, *addresses: int) -> None:
            super().run(*addresses)
            other = threading.Thread(target=lambda: drawn.append(torch.rand(5)))
            other.start()
            other.join()

    monkeypatch.setattr(bernoulli, "BernoulliPlan", Interrupted)
    torch.manual_seed(4)
    got = torch.zeros(1000).bernoulli_(0.5)
    assert torch.equal(drawn[0], others)
    assert torch.equal(got, expected)
    assert torch.equal(default_generator.get_state(), state)


def test_numbers_that_pytorch_draws_otherwise_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Intel's processors, by MKL."""
    monkeypatch.setattr(bernoulli, "is_serial", lambda: False)
    expected = mixed(torch.zeros(2000))
    integration.enable()
    for _ in range(3):
        assert all(map(torch.equal, mixed(torch.zeros(2000)), expected))
    assert [one.decision for one in override().selector.report().problems] == ["as is"]
