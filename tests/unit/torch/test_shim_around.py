"""The shim and its surroundings: errors, other convolutions, threads, forks, foreign kernels."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from shim_case import AsIs, either, operands, override
from torch import Tensor, nn

import bestof.torch as integration
from bestof.selection import use_policy
from bestof.torch.dispatch.convolution.override import ConvolutionOverride

__all__ = ["either", "override"]  # fixtures


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    "error",
    [
        KeyError("k"),
        KeyboardInterrupt(),
        SystemExit(3),
        UnicodeDecodeError("utf-8", b"?", 0, 1, "why"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("backward", [False, True])
def test_errors_of_python_pass_unchanged(
    override: ConvolutionOverride,
    error: BaseException,
    backward: bool,
    monkeypatch: pytest.MonkeyPatch,
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


def test_other_than_2d_convolutions_pass_through(either: ConvolutionOverride) -> None:
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
            override.layer,
            "ask_forward",
            lambda found, *given: (met.extend(map(id, given)), ask(found, *given))[1],
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
    assert other.shim is None  # what stands there is not PyTorch's own
    override.remove()
    other = ConvolutionOverride()
    override.register()
    other.register()
    try:
        assert not other.is_shim_in
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
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
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
