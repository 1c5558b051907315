"""Convolutions on a real CUDA device: every row against float64, and what a program may do."""

from __future__ import annotations

import threading
import warnings
from math import isfinite
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bestof.torch as bt
from bestof.errors import BestofError, BestofWarning
from bestof.torch.dispatch.convolution.override import ConvolutionOverride
from bestof.torch.dispatch.overrides import convolution_overrides, make_overrides
from bestof.torch.ops.convolution.problem import ConvProblem

SHAPES = {
    # name: input, weight, stride, padding, dilation, groups
    "3x3": ((4, 32, 28, 28), (48, 32, 3, 3), 1, 1, 1, 1),
    "1x1": ((4, 64, 14, 14), (32, 64, 1, 1), 1, 0, 1, 1),
    "stem": ((2, 3, 64, 64), (16, 3, 7, 7), 2, 3, 1, 1),
    "strided": ((2, 24, 15, 17), (20, 24, 3, 3), 2, 1, 1, 1),
    "dilated": ((2, 16, 20, 20), (16, 16, 3, 3), 1, 2, 2, 1),
    "grouped": ((2, 32, 14, 14), (64, 8, 3, 3), 1, 1, 1, 4),
    "depthwise": ((2, 32, 14, 14), (32, 1, 3, 3), 1, 1, 1, 32),
    "one image": ((1, 8, 5, 5), (4, 8, 5, 5), 1, 0, 1, 1),
}


CUDA = {"kernel": {"cuda": True}}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def cuda_override() -> ConvolutionOverride:
    make_overrides()
    _cpu, cuda = convolution_overrides()
    return cuda


def operands(name: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Return input, weight and bias on the device."""
    x_shape, w_shape, *_ = SHAPES[name]
    numbers = torch.Generator().manual_seed(5)
    made = [torch.randn(shape, generator=numbers) for shape in (x_shape, w_shape, w_shape[:1])]
    x, w, b = (one.to("cuda", dtype) for one in made)
    return x, w, b


def step(name: str, x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    """Return the output and the gradients of input, weight and bias."""
    _, _, stride, padding, dilation, groups = SHAPES[name]
    given = [one.detach().clone().requires_grad_() for one in (x, w, b)]
    output = functional.conv2d(*given, stride, padding, dilation, groups)
    numbers = torch.Generator().manual_seed(6)
    output.backward(torch.randn(output.shape, generator=numbers).to(output))
    return [output.detach(), *(one.grad for one in given if one.grad is not None)]


def assert_within(got: list[Tensor], exact: list[Tensor], rms: float) -> None:
    assert len(got) == len(exact) == 4
    for one, right in zip(got, exact, strict=True):
        error = (one.double() - right).square().mean().sqrt() / right.square().mean().sqrt()
        assert float(error) <= rms  # NaN fails too


def settle(call: Any, limit: int = 10_000) -> Any:
    """Call until every problem on the device is decided. One call in 64 may be a trial."""
    for number in range(limit):
        result = call()
        torch.cuda.synchronize()
        if number % 32 == 0 and all(_decisions()) and _decisions():
            return result
    raise AssertionError(f"never settled: {_decisions()}")


def _decisions() -> list[str | None]:
    return [
        problem.decision
        for selector, _ in cuda_override().layer.passes
        for problem in selector.report().problems
    ]


def exact_step(name: str, x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    """Return what `step` does in float64, by PyTorch's own kernels on the processor."""
    return [one.cuda() for one in step(name, *(one.cpu().double() for one in (x, w, b)))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_every_row_is_right_on_every_form(name: str, dtype: torch.dtype) -> None:
    x, w, b = operands(name, dtype)
    _, _, stride, padding, dilation, groups = SHAPES[name]
    output, gx, gw, _ = exact_step(name, x, w, b)
    numbers = torch.Generator().manual_seed(6)
    gradient = torch.randn(output.shape, generator=numbers).to(x)
    pair = lambda one: (one, one)  # noqa: E731
    problem = ConvProblem.of(x, w, True, pair(stride), pair(padding), pair(dilation), groups)
    override = cuda_override()
    problem = problem._replace(device=override.device.name(x), accuracy="relaxed")
    given = ((x, w, b), (gradient, w), (gradient, x))
    ran = set()
    for part, tensors, right in zip(override.parts, given, (output, gx, gw), strict=True):
        for row in part.operation.rows:
            if not row.can_run(problem):
                continue
            for layout in (torch.contiguous_format, torch.channels_last):
                inputs = [
                    one.to(memory_format=layout) if one.dim() == 4 else one for one in tensors
                ]
                torch.full_like(right, float("nan"), dtype=dtype)  # freed memory of its size
                got = row.function(part.original, problem, *inputs)
                assert got.dtype is dtype, row.name
                error = (got.double() - right).square().mean() / right.square().mean()
                bound = part.operation.bound(row, problem).rms
                assert float(error.sqrt()) <= 4 * bound, (row.name, part.operation.name)
                ran.add(row.name)
    assert {"as is", "channels last", "cudnn benchmark"} <= ran


@pytest.mark.parametrize("accuracy", ["float32", "relaxed"])
@pytest.mark.parametrize("name", ["3x3", "stem", "depthwise"])
def test_a_layer_settles_and_stays_right(name: str, accuracy: str) -> None:
    x, w, b = operands(name)
    exact = exact_step(name, x, w, b)
    bt.enable({"kernel": {"cuda": True, "accuracy": accuracy}})
    with warnings.catch_warnings():
        warnings.simplefilter("error", BestofWarning)
        for _ in range(30):
            assert_within(step(name, x, w, b), exact, 1e-5)
        settle(lambda: step(name, x, w, b))
    assert_within(step(name, x, w, b), exact, 1e-5)
    summary = bt.summary()
    assert any(row.name.startswith("cuda convolution") for row in summary.passes)


def test_settled_calls_never_wait_for_the_device() -> None:
    x, w, b = operands("3x3")
    bt.enable(CUDA)
    settle(lambda: step("3x3", x, w, b))
    gradient = torch.randn_like(functional.conv2d(x, w, b, padding=1))
    given = [one.clone().requires_grad_() for one in (x, w, b)]
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is a prototype, PyTorch says
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(200):  # samples among them, whose events are asked for later
            functional.conv2d(*given, padding=1).backward(gradient)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_undecided_calls_rarely_meet_python() -> None:
    x, w, b = operands("3x3")
    bt.enable(CUDA)
    shim = cuda_override().shim
    assert shim is not None
    for _ in range(3):
        step("3x3", x, w, b)
    before = shim.asked
    for _ in range(320):
        step("3x3", x, w, b)
    assert shim.asked - before <= 2 * 320 / 64 + 6


def test_a_captured_graph_replays_the_decision() -> None:
    x, w, b = operands("3x3")
    exact = exact_step("3x3", x, w, b)[0]
    bt.enable(CUDA)
    call = lambda: functional.conv2d(x, w, b, padding=1)  # noqa: E731
    with torch.no_grad():
        settle(call)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = call()
    captured.fill_(float("nan"))
    for _ in range(3):
        graph.replay()
    error = (captured.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert float(error) <= 1e-5


def test_an_undecided_problem_can_be_captured() -> None:
    x, w, b = operands("dilated")
    exact = exact_step("dilated", x, w, b)[0]
    call = lambda: functional.conv2d(x, w, b, padding=2, dilation=2)  # noqa: E731
    with torch.no_grad():
        call()  # cuDNN makes its handles outside of the capture
        bt.enable(CUDA)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = call()
        graph.replay()
    assert float((captured.double() - exact).abs().max()) <= 1e-3
    settle(call)


def test_streams_and_threads() -> None:
    x, w, b = operands("3x3")
    exact = exact_step("3x3", x, w, b)
    bt.enable(CUDA)
    faults: list[BaseException] = []

    def work() -> None:
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                for _ in range(60):
                    got = step("3x3", x, w, b)
                stream.synchronize()
            assert_within(got, exact, 1e-5)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not faults


def test_deterministic_programs_are_left_to_pytorch() -> None:
    x, w, b = operands("3x3")
    bt.enable(CUDA)
    torch.backends.cudnn.deterministic = True
    before = cuda_override().layer.forward_pass.trials
    results = [step("3x3", x, w, b) for _ in range(5)]
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))
    assert cuda_override().layer.forward_pass.trials == before


def test_other_operations_on_the_device_are_undisturbed() -> None:
    numbers = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(64, 32, 256, device="cuda", generator=numbers)
    image = torch.randn(8, 16, 32, 32, device="cuda", generator=numbers)
    modules = [
        (nn.Linear(256, 512), x), (nn.LayerNorm(256), x), (nn.GELU(), x), (nn.SiLU(), x),
        (nn.Softmax(-1), x), (nn.MaxPool2d(2), image), (nn.AvgPool2d(2), image),
        (nn.GroupNorm(4, 16), image), (nn.ConvTranspose2d(16, 8, 3), image),
        (nn.Conv1d(32, 16, 3), x), (nn.Conv3d(1, 4, 3), x[:4, None, None].reshape(4, 1, 8, 32, 32)),
        (nn.MultiheadAttention(256, 8, batch_first=True), x), (nn.GRU(256, 64), x),
    ]  # fmt: skip
    for module, given in modules:
        module = module.cuda().eval()  # noqa: PLW2901
        arguments = (given,) * (3 if isinstance(module, nn.MultiheadAttention) else 1)
        with torch.no_grad():
            expected = module(*arguments)
            with bt.enabled(CUDA):
                got = module(*arguments)
        first = lambda one: one[0] if isinstance(one, tuple) else one  # noqa: E731
        torch.testing.assert_close(
            first(got), first(expected), msg=lambda m, one=module: f"{one}: {m}"
        )


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("amp", [None, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [False, True])
def test_a_network_learns(amp: torch.dtype | None, layout: bool) -> None:
    bt.enable({**CUDA, "layout": {"enable": layout}})
    torch.manual_seed(0)
    model = Network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", enabled=amp is torch.float16)
    numbers = torch.Generator("cuda").manual_seed(2)
    x = torch.randn(128, 3, 32, 32, device="cuda", generator=numbers)
    y = (x[:, 0].mean((1, 2)) * 150).long().clamp(-5, 4) + 5
    losses = []
    for _ in range(120):
        optimizer.zero_grad()
        with torch.autocast("cuda", amp, enabled=amp is not None):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert all(map(isfinite, losses))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as is the next
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_a_compiled_model_runs() -> None:
    model = Network().cuda().eval()
    x = torch.randn(8, 3, 32, 32, device="cuda")
    with torch.no_grad():
        expected = model(x)
        bt.enable(CUDA)
        compiled = torch.compile(model)
        for _ in range(5):
            got = compiled(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_plan_of_a_model_on_the_device_is_refused() -> None:
    model = Network().cuda().eval()
    x = torch.randn(8, 3, 32, 32, device="cuda")
    with pytest.raises(BestofError, match="runs on the CPU"), torch.no_grad():
        bt.optimize(model, x)


def test_memory_that_runs_short_ends_nothing() -> None:
    """An alternative that does not fit loses; the program gets its result."""
    free, _total = torch.cuda.mem_get_info()
    x = torch.randn(16, 64, 224, 224, device="cuda")
    w = torch.randn(64, 64, 3, 3, device="cuda")
    expected = functional.conv2d(x, w, padding=1)
    # im2col of this input takes 1.9 GB; less is left.
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((total - free + 1.2e9) / total)
    try:
        bt.enable({"kernel": {"cuda": True, "accuracy": "relaxed"}})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BestofWarning)
            for _ in range(60):
                got = functional.conv2d(x, w, padding=1)
                torch.cuda.synchronize()
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_nothing_is_chosen_on_the_device_unless_asked_for() -> None:
    x, w, b = operands("3x3")
    before = cuda_override().layer.forward_pass.trials
    bt.enable()
    expected = step("3x3", x, w, b)
    for _ in range(20):
        assert len(step("3x3", x, w, b)) == len(expected)
    assert cuda_override().layer.forward_pass.trials == before
    assert not cuda_override().is_registered
