"""Convolutions for which PyTorch as is was chosen: the shim answers them without Python, and counts them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as integration
from bestof.selection import Fixed, use_policy
from bestof.selection.journal import DisqualificationEntry
from bestof.selection.policy import Search
from bestof.torch import shim
from bestof.torch.enable import convolution_override
from bestof.torch.override import ConvolutionOverride
from bestof.torch.shim import ASKED_EVERY


class AsIs:
    def start(self, alternatives: Sequence[str]) -> Search:
        return Fixed("as is" if "as is" in alternatives else "independent").start(alternatives)


@pytest.fixture
def override() -> ConvolutionOverride:
    use_policy(AsIs())
    integration.enable()
    found = convolution_override()
    assert found is not None
    assert found._shim is not None
    assert found._is_shim_in
    return found


@pytest.fixture(params=["shim", "python"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ConvolutionOverride:
    """As on a PyTorch without what the shim is made of, too."""
    if request.param == "python":
        monkeypatch.setattr(shim, "_conversions", lambda: None)
        use_policy(AsIs())
        integration.enable()
        found = convolution_override()
        assert found is not None
        assert found._shim is None
        return found
    return request.getfixturevalue("override")  # type: ignore[no-any-return]


def operands(groups: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 4, 6, 6, requires_grad=True), torch.randn(4, 4 // groups, 3, 3, requires_grad=True)
    return x, weight, torch.randn(4, requires_grad=True)


def lookups(override: ConvolutionOverride, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Python looks up from now on."""
    met: list[Any] = []
    for name in ("find_forward", "find_backward"):
        find = getattr(override.layer, name)
        monkeypatch.setattr(override.layer, name, lambda *given, find=find: (met.append(given), find(*given))[1])
    return met


def test_they_are_known_by_what_they_look_like(override: ConvolutionOverride, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = (one.detach() for one in operands())
    halves = operands(2)[1].detach()
    calls: list[Callable[[], Tensor]] = [
        lambda: torch.conv2d(x, weight, bias),
        lambda: torch.conv2d(x, weight),
        lambda: torch.conv2d(x, weight, bias, padding=1),
        lambda: torch.conv2d(x, weight, bias, padding=(1, 0)),
        lambda: torch.conv2d(x, weight, bias, 2),
        lambda: torch.conv2d(x, weight, bias, dilation=2),
        lambda: torch.conv2d(x, halves, bias, groups=2),
        lambda: torch.conv2d(x[:1], weight, bias),
        lambda: torch.conv2d(x.contiguous(memory_format=torch.channels_last), weight, bias),
        lambda: torch.conv2d(x.double(), weight.double(), bias.double()),
    ]
    integration.disable()
    expected = [call() for call in calls]
    integration.enable()
    with torch.no_grad():
        for _ in range(3):  # each decision makes all others forgotten
            assert all(torch.equal(call(), right) for call, right in zip(calls, expected, strict=True))
        met = lookups(override, monkeypatch)
        assert all(torch.equal(call(), right) for call, right in zip(calls, expected, strict=True))
    assert met == []
    calls[0]()
    assert len(met) == 1


def test_they_give_what_pytorch_gives_and_are_all_counted(either: ConvolutionOverride) -> None:
    operand = operands()
    integration.disable()
    expected = torch.conv2d(*operand)
    wanted = torch.autograd.grad(expected.square().sum(), operand)
    integration.enable()
    calls = 3 * ASKED_EVERY
    for _ in range(calls):
        result = torch.conv2d(*operand)
        assert torch.equal(result, expected)
        torch.testing.assert_close(torch.autograd.grad(result.square().sum(), operand), wanted)
    totals = [sum(counts.totals().values()) for _, counts in either.layer.passes]
    assert totals == [calls] * 3
    # Now and then, so that they notice when it becomes slower.
    asked = sum(selector.settled_calls for selector, _ in either.layer.passes)
    assert 2 * len(totals) <= asked <= 4 * len(totals)


def test_half_a_backward_pass_is_no_whole_one(either: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    for _ in range(4):
        torch.autograd.grad(torch.conv2d(x, weight, bias).sum(), (x, weight, bias))
        (half,) = torch.autograd.grad(torch.conv2d(x, weight, bias).sum(), x)
        (frozen,) = torch.autograd.grad(torch.conv2d(x, weight.detach(), bias).sum(), x)
        assert torch.equal(half, frozen)


def test_a_decision_that_falls_is_forgotten_at_once(
    override: ConvolutionOverride, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        for _ in range(3):
            torch.conv2d(x, weight, bias)
        met = lookups(override, monkeypatch)
        torch.conv2d(x, weight, bias)
        assert met == []
        (problem,) = override.layer.forward_calls.totals()
        listen = override.layer._listener(override.layer.forward_pass.name)
        listen(DisqualificationEntry(problem, "as is", "raised"))
        for count in (1, 2):
            torch.conv2d(x, weight, bias)
            assert len(met) == count


def test_what_was_looked_up_before_a_decision_is_not_believed(override: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    found, find = [], override.layer.find_forward

    def late(met: Any) -> Any:
        known = find(met)
        override.layer.forget()  # by another thread's decision
        found.append(known.chosen)
        return known

    with torch.no_grad():
        for _ in range(3):
            torch.conv2d(x, weight, bias)
        override.layer.forget()
        override.layer.find_forward = late  # type: ignore[method-assign]
        for _ in range(3):
            torch.conv2d(x, weight, bias)
    assert found == [True] * 3


def test_what_was_looked_up_before_a_decision_is_not_remembered(either: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    layer = either.layer

    class Decided(dict[Any, str]):
        def get(self, *given: Any) -> Any:
            found = super().get(*given)
            layer._listener("another selector")(DisqualificationEntry("its problem", "as is", "raised"))
            return found

    for _ in range(3):
        torch.autograd.grad(torch.conv2d(x, weight, bias).sum(), (x, weight, bias))
    layer._as_is, layer._joint = {}, {}
    layer.forget()
    layer._decided = Decided(layer._decided)
    torch.autograd.grad(torch.conv2d(x, weight, bias).sum(), (x, weight, bias))
    assert not layer._as_is
    assert not layer._joint


def test_what_was_configured_before_a_change_is_not_believed(
    override: ConvolutionOverride, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        for _ in range(3):
            torch.conv2d(x, weight, bias)
        override.layer.forget()
        own = override._key
        with monkeypatch.context() as patch:
            # Another thread configures after this one has read the level of accuracy.
            patch.setattr(override, "_key", lambda *given: (own(*given), override.layer.forget())[0])
            torch.conv2d(x, weight, bias)
        met = lookups(override, monkeypatch)
        torch.conv2d(x, weight, bias)
    assert len(met) == 1


def test_another_accuracy_is_another_call(either: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        for _ in range(3):
            torch.conv2d(x, weight, bias)
        count = sum(either.layer.forward_calls.totals().values())
        integration.enable({"kernel": {"accuracy": "exact"}})
        torch.conv2d(x, weight, bias)
        assert sum(either.layer.forward_calls.totals().values()) == count
        integration.enable({"kernel": {"accuracy": "relaxed"}})
        torch.conv2d(x, weight, bias)
        assert {problem.accuracy for problem in either.layer.forward_calls.totals()} == {"float32", "relaxed"}


def test_another_accuracy_is_counted_apart(either: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        for _ in range(5):
            torch.conv2d(x, weight, bias)
        integration.enable({"kernel": {"accuracy": "relaxed"}})
        for _ in range(ASKED_EVERY):
            torch.conv2d(x, weight, bias)
    counts = {problem.accuracy: calls for problem, calls in either.layer.forward_calls.totals().items()}
    assert counts == {"float32": 5, "relaxed": ASKED_EVERY}


def test_a_call_without_bias_is_no_call_with_one(either: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    with torch.no_grad():
        for _ in range(4):
            torch.conv2d(x, weight)
        for _ in range(20):
            torch.conv2d(x, weight, bias)
    assert {problem.bias: calls for problem, calls in either.layer.forward_calls.totals().items()} == {
        False: 4,
        True: 20,
    }


def test_what_the_shim_does_not_answer_seldom_asks_the_selectors_either(either: ConvolutionOverride) -> None:
    """As the first layer of a network, whose input wants no gradient, and what no longer fits into the shim's table."""
    x, weight, _ = (one.detach() for one in operands())
    trained = weight.clone().requires_grad_()
    image, pixel = torch.ones(1, 1, 50, 50), torch.ones(1, 1, 1, 1)

    def train() -> None:
        torch.conv2d(x, trained)

    def infer() -> None:
        with torch.no_grad():
            torch.conv2d(image, pixel)

    with torch.no_grad():
        for _ in range(2):  # 2,048 fit
            for height, width in ((height, width) for height in range(1, 47) for width in range(1, 47)):
                torch.conv2d(image[..., :height, :width], pixel)
    for call in (train, infer):
        for _ in range(3):
            call()
        asked = sum(selector.settled_calls for selector, _ in either.layer.passes)
        for _ in range(4 * ASKED_EVERY):
            call()
        assert sum(selector.settled_calls for selector, _ in either.layer.passes) - asked == 4


def test_training_is_pythons_while_a_matrix_is_kept(
    override: ConvolutionOverride, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward pass drops the matrix that an older one kept of the same tensor."""
    x, weight, bias = operands()
    for _ in range(3):
        torch.conv2d(x, weight, bias)
    met = lookups(override, monkeypatch)
    torch.conv2d(x, weight, bias)
    assert met == []
    override.layer.kept.keep(x, "some geometry", torch.ones(3))
    torch.conv2d(x, weight, bias)
    assert len(met) == 1
    override.layer.kept.clear()
    torch.conv2d(x, weight, bias)
    assert len(met) == 1


@pytest.mark.parametrize(
    "error",
    [KeyError("k"), KeyboardInterrupt(), SystemExit(3), UnicodeDecodeError("utf-8", b"?", 0, 1, "why")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("backward", [False, True])
def test_what_python_raises_comes_out_itself(
    override: ConvolutionOverride, error: BaseException, backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    operand = operands()
    result = torch.conv2d(*operand) if backward else None
    monkeypatch.setattr(override.layer, "find_backward" if backward else "find_forward", fail)
    with pytest.raises(type(error)) as raised:
        torch.conv2d(*operand) if result is None else result.sum().backward()
    assert raised.value is error
    assert fail.__name__ in [entry.name for entry in raised.traceback]
    references = sys.getrefcount(error)
    for _ in range(10):
        with pytest.raises(type(error)):
            torch.conv2d(*operand) if result is None else torch.conv2d(*operand).sum().backward()
    del raised
    gc.collect()
    assert sys.getrefcount(error) <= references


def test_errors_are_pytorchs_own(either: ConvolutionOverride) -> None:
    x, weight, bias = operands()
    for call in (
        lambda: torch.conv2d(x, weight[:, :3], bias),
        lambda: torch.conv2d(x, weight, bias[:2]),
        lambda: torch.conv2d(x, weight.double(), bias),
        lambda: torch.conv2d(x[0, 0], weight, bias),
        lambda: torch.conv2d(x, weight, bias, padding=-9),
    ):
        texts = []
        for switch in (integration.enable, integration.disable):
            switch()
            with pytest.raises(RuntimeError) as raised:
                call()
            texts.append(str(raised.value))
        assert texts[0] == texts[1]


def test_what_is_no_2d_convolution_passes_through(either: ConvolutionOverride) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 5, 6, 7)
    calls: list[Callable[[], Tensor]] = [
        lambda: torch.conv1d(x[0, 0], torch.ones(2, 6, 3)),
        lambda: torch.conv3d(x, torch.ones(2, 3, 2, 2, 2), padding=1),
        lambda: torch.conv_transpose2d(x[0], torch.ones(5, 2, 3, 3), torch.ones(2), 2, 1, 1),
        lambda: torch.conv2d(x[0, 0][None][0], torch.ones(2, 5, 3, 3)),  # without a batch
        lambda: torch.conv2d(x[0][:0], torch.ones(2, 5, 3, 3)),
    ]
    got = [call() for call in calls]
    integration.disable()
    assert all(torch.equal(one, call()) for one, call in zip(got, calls, strict=True))


def test_a_parameter_comes_as_itself_and_nothing_is_kept(
    override: ConvolutionOverride, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[int] = []
    ask = override.layer.ask_forward
    x, layer = torch.randn(2, 4, 6, 6), nn.Conv2d(4, 4, 3)
    with torch.no_grad(), monkeypatch.context() as patch:
        patch.setattr(
            override.layer, "ask_forward", lambda found, *given: (met.extend(map(id, given)), ask(found, *given))[1]
        )
        result = layer(x)
    assert met == [id(x), id(layer.weight), id(layer.bias)]
    with torch.no_grad():
        for _ in range(4):
            result = layer(x)
    gone = [weakref.ref(one) for one in (x, layer.weight, layer.bias, result)]
    del x, layer, result
    gc.collect()
    assert [one() for one in gone] == [None] * 4


def test_threads_while_decisions_come_and_kernels_go(override: ConvolutionOverride) -> None:
    operand = operands()
    integration.disable()
    expected = torch.conv2d(*operand).detach()
    wanted = torch.autograd.grad(torch.conv2d(*operand).sum(), operand)
    integration.enable()
    failed: list[BaseException] = []
    stop = threading.Event()

    def call() -> None:
        try:
            while not stop.is_set():
                result = torch.conv2d(*operand)
                torch.testing.assert_close(result, expected)
                torch.testing.assert_close(torch.autograd.grad(result.sum(), operand), wanted)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        override.layer.forget()
        integration.disable()
        integration.enable()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def test_a_second_override_goes_by_python(override: ConvolutionOverride) -> None:
    other = ConvolutionOverride()
    assert other._shim is None  # what stands there is not PyTorch's own
    override.remove()
    other = ConvolutionOverride()
    override.register()
    other.register()
    try:
        assert not other._is_shim_in
        torch.conv2d(*operands())
        assert sum(other.layer.forward_calls.totals().values()) == 1
    finally:
        other.remove()
    torch.conv2d(*operands())
    assert sum(override.layer.forward_calls.totals().values()) == 1


def test_a_fork_goes_on() -> None:
    code = """
import os, torch
import bestof.torch as integration
from bestof.selection import Fixed, use_policy
torch.set_num_threads(1)
use_policy(Fixed("as is"))
integration.enable()
x, weight = torch.randn(1, 4, 6, 6), torch.randn(4, 4, 3, 3)
with torch.no_grad():
    right = [torch.conv2d(x, weight) for _ in range(3)][-1]
    if (child := os.fork()) == 0:
        good = all(torch.equal(torch.conv2d(x, weight), right) for _ in range(100))
        os._exit(0 if good else 1)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout.split() == ["0"]


@pytest.mark.filterwarnings("ignore:.*previously registered kernel")
def test_a_kernel_of_somebody_else_stays_the_original() -> None:
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    met = []
    own = torch.library.get_kernel("aten::convolution", "CPU").call_boxed
    keyset = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def kernel(*given: object) -> object:
        met.append(len(given))
        return own(keyset, *given)

    library.impl("convolution", kernel, "CPU")
    try:
        use_policy(AsIs())
        integration.enable()
        x, weight, bias = operands()
        with torch.no_grad():
            for _ in range(4):
                torch.conv2d(x, weight, bias)
        assert met == [9] * 4
        integration.disable()
    finally:
        library._destroy()
