"""Every plan of every model computes the same as the model, for all its shapes and layouts."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from plan_models import MODELS, build
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import bestof
import bestof.torch as bt
from bestof.torch.plan.algorithms.table import algorithm, promised_error
from bestof.torch.plan.layers.problem import FusedProblem
from bestof.torch.plan.memory import arena
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.steps.convolution_step import selector

# What F(4) promises a layer, rms of the error over rms of the result: the most that accuracy
# float32 allows.
PROMISED = 5e-6
# More steps than any of these models has; errors of single steps add up at worst.
STEPS = 30


class _PoisonedTorch:
    """The module torch, whose zeros are NaN."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(*args, **kwargs).fill_(float("nan"))


@pytest.fixture(autouse=True)
def every_algorithm_runs(own_process: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One trial of each alternative, whatever it takes; and memory that nobody has written to reads
    as NaN."""
    bestof.use_policy("rounds:rounds=1")
    selector.cache_clear()
    monkeypatch.setattr(arena, "torch", _PoisonedTorch())  # not of others, who compare by zeros
    yield
    selector.cache_clear()


def promised(plan: OptimizedModel) -> float:
    """What the algorithms that were chosen promise: as if every step erred like the worst of them.

    Not the sum of the steps' own promises: these are relative to sums with random signs, and
    results in which terms cancel are smaller. Measured: up to 1.1 times the promise of a single
    step.
    """
    program = next(reversed(plan._programs.values()))[2]
    problems = {node.meta["name"]: one.problem for node, one in program.choices.items()}
    chosen = program.decisions()
    assert chosen.keys() == problems.keys()
    # `optimize` verified norms and attentions: each within twice the error of PyTorch's operator.
    native = [
        (problem, name)
        for step, name in chosen.items()
        if isinstance(problem := problems[step], FusedProblem) and not algorithm(name).trusted
    ]
    return STEPS * max([PROMISED, *(promised_error(problem, name) for problem, name in native)])


def assert_close(
    got: object, model: nn.Module, x: Tensor, allowed: float = STEPS * PROMISED
) -> None:
    """Against float64: what is allowed is relative to the rms of the results. Strides as PyTorch
    has them."""
    with torch.no_grad():
        expected = pytree.tree_leaves(copy.deepcopy(model).double()(x.double()))
        plain = pytree.tree_leaves(model(x))
    results = pytree.tree_leaves(got)
    assert len(results) == len(expected)
    for result, right, single in zip(results, expected, plain, strict=True):
        assert result.shape == right.shape
        assert result.dtype is torch.float32
        assert result.stride() == single.stride()
        if right.numel():
            off = (result.double() - right).square().mean().sqrt()
            assert off <= allowed * right.square().mean().sqrt()


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("accuracy", ["float32", "relaxed"])
def test_outputs(name: str, accuracy: str) -> None:
    model, x = build(name)
    plan = bt.optimize(model, x, accuracy=accuracy)
    allowed = promised(plan)
    for given in (x, torch.randn_like(x)):
        for _ in range(2):
            assert_close(plan(given), model, given, allowed)


@pytest.mark.parametrize(
    ("algorithm", "wrong"), [("winograd4", 2e-4), ("winograd6", 1e-3), ("matvec_bf16", 0.1)]
)
def test_the_tolerance_is_the_promise_of_the_chosen_algorithm(
    algorithm: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the bound of this file: an error beyond it is found, whatever else `relaxed` would have
    allowed."""
    monkeypatch.setenv("BESTOF_FORCE", f"fused convolution={algorithm}")
    selector.cache_clear()
    layer, shape = (
        (nn.Linear(32, 8), (2, 32))
        if algorithm == "matvec_bf16"
        else (nn.Conv2d(8, 8, 3), (1, 8, 16, 16))
    )
    model, x = layer.eval(), torch.randn(shape)
    plan = bt.optimize(model, x, accuracy="relaxed")
    assert [step.algorithm for step in plan.explain(repeats=1).steps if step.algorithm] == [
        algorithm
    ]
    assert_close(plan(x), model, x, promised(plan))
    with pytest.raises(AssertionError):
        assert_close(plan(x) * (1 + wrong), model, x, promised(plan))


@pytest.mark.parametrize("name", MODELS)
def test_exact_is_bit_identical(name: str) -> None:
    model, x = build(name)
    plan = bt.optimize(model, x, accuracy="exact")
    with torch.no_grad():
        expected = pytree.tree_leaves(model(x))
    for got, right in zip(pytree.tree_leaves(plan(x)), expected, strict=True):
        assert torch.equal(got, right)


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", MODELS)
def test_other_batch_sizes_and_none_at_all(name: str) -> None:
    model, x = build(name)
    plan = bt.optimize(model, x, tune=False)
    for batch in (1, 5, 0):
        given = torch.randn(batch, *x.shape[1:])
        for _ in range(10):  # decisions are made meanwhile
            assert_close(plan(given), model, given)


@pytest.mark.parametrize("name", ["resnet, basic", "densenet", "unet", "shuffle"])
def test_other_image_sizes(name: str) -> None:
    model, x = build(name)
    plan = bt.optimize(model, x)
    given = torch.randn(1, 3, 24, 40)
    assert_close(plan(given), model, given)
    assert_close(plan(x), model, x)


@pytest.mark.parametrize("name", ["resnet, basic", "unet", "shuffle"])
def test_channels_last_and_strided_inputs(name: str) -> None:
    model, x = build(name)
    plan = bt.optimize(model, x)
    for given in (
        x.to(memory_format=torch.channels_last),
        torch.randn(*x.shape[:-1], 2 * x.shape[-1])[..., ::2],
    ):
        assert_close(plan(given), model, given)


@pytest.mark.parametrize("name", MODELS)
def test_copies_and_files(name: str) -> None:
    model, x = build(name)
    plan = bt.optimize(model, x)
    expected = pytree.tree_leaves(plan(x))
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    for other in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan)), bt.load(file)):
        for got, right in zip(pytree.tree_leaves(other(x)), expected, strict=True):
            assert torch.equal(got, right)


def test_threads_do_not_meet() -> None:
    model, x = build("unet")
    plan = bt.optimize(model, x)
    inputs = [torch.randn(1 + number % 2, *x.shape[1:]) for number in range(8)]
    failed: list[BaseException] = []

    def call(given: Tensor) -> None:
        try:
            torch.set_num_threads(1)
            for _ in range(10):
                assert_close(plan(given), model, given)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call, args=(given,)) for given in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


@pytest.mark.long
def test_a_fork_plans_though_a_thread_of_its_parent_was_at_it() -> None:
    code = """
import os, signal, threading, torch
import bestof.torch as bt
from bestof.torch.plan.trace import traced as trace
torch.set_num_threads(1)
model, x = torch.nn.Conv2d(4, 4, 3).eval(), torch.randn(1, 4, 8, 8)
bt.optimize(model, (x,))
begun, end, by_fx = threading.Event(), threading.Event(), trace._by_fx
def slow(*given):
    begun.set()
    end.wait()
    return by_fx(*given)
trace._by_fx = slow
thread = threading.Thread(target=bt.optimize, args=(model, (x,)))
thread.start()
begun.wait()
if (child := os.fork()) == 0:
    signal.alarm(250)
    trace._by_fx = by_fx
    plan = bt.optimize(model, (x,))
    os._exit(0 if torch.allclose(plan(x), model(x), atol=1e-4) else 1)
print(os.waitpid(child, 0)[1])
end.set()
thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0"]


def test_threads_make_plans_at_once() -> None:
    """PyTorch's tracers do not do so: without a lock around them one of three runs or more
    failed."""
    failed: list[BaseException] = []

    def make(name: str) -> None:
        try:
            model, x = build(name)
            for _ in range(3):
                assert_close(bt.optimize(model, x, tune=False)(x), model, x)
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=make, args=(name,))
        for name in ("unet", "shuffle", "densenet", "resnet, basic")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def test_a_plan_runs_while_another_thread_traces() -> None:
    model, x = build("resnet, basic")
    plan = bt.optimize(model, x)
    failed: list[BaseException] = []

    def call() -> None:
        try:
            assert_close(plan(x), model, x)
        except BaseException as error:
            failed.append(error)

    def traced(given: Tensor) -> Tensor:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return given + 1

    make_fx(traced, tracing_mode="fake", pre_dispatch=True)(torch.ones(2))
    assert not failed, failed[0]


def test_results_are_the_callers() -> None:
    """A later call must not write into what an earlier one returned."""
    model, x = build("unet")
    plan = bt.optimize(model, x)
    first = plan(x)
    kept = first.clone()
    plan(torch.randn_like(x))
    assert torch.equal(first, kept)


def test_optimize_changes_nothing_and_a_call_what_the_model_changes() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.convolution(x.relu_())

    model, x = InPlace().eval(), torch.randn(1, 3, 8, 8)
    before, state = x.clone(), {name: value.clone() for name, value in model.state_dict().items()}
    plan = bt.optimize(model, x)
    assert torch.equal(x, before)
    got = plan(x)
    assert torch.equal(x, before.relu())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert_close(got, model, before)


def test_while_tuning_is_enabled() -> None:
    model, x = build("unet")
    with bt.enabled():
        plan = bt.optimize(model, x)
        got = plan(x)
    assert_close(got, model, x)


def test_inference_mode_or_not() -> None:
    with torch.inference_mode():
        model, x = build("unet")  # parameters that are inference tensors
        plan = bt.optimize(model, x)
        first = plan(x)
    assert torch.equal(plan(x.clone()), first)
    model, x = build("unet")
    plan = bt.optimize(model, x)
    with torch.inference_mode():
        assert_close(plan(x), model, x)
        given = torch.randn(3, *x.shape[1:])
        assert_close(plan(given), model, given)
    assert_close(plan(x), model, x)
    assert_close(plan(given.clone()), model, given.clone())


def test_other_dtypes_run_as_pytorch_runs_them() -> None:
    model, x = build("unet")
    model, x = model.double(), x.double()
    plan = bt.optimize(model, x)
    with torch.no_grad():
        assert torch.equal(plan(x), model(x))


def test_arguments_by_name_and_outputs_that_are_no_tensors() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor, *, scale: int = 2, mask: Tensor | None = None) -> object:
            return (
                {"scaled": x * scale, "scale": scale, "mask": None} if mask is None else (x * mask,)
            )

    model, x = Named().eval(), torch.randn(2, 3)
    plan = bt.optimize(model, x, {"scale": 3})
    got = plan(x, scale=3)
    assert got.keys() == {"scaled", "scale", "mask"}
    assert torch.equal(got["scaled"], x * 3)
    assert (got["scale"], got["mask"]) == (3, None)
    assert torch.equal(plan(x)["scaled"], x * 2)
    assert torch.equal(plan(x, mask=torch.ones(3))[0], x)


def test_random_numbers_are_drawn_anew() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand_like(x)

    plan, x = bt.optimize(Noisy().eval(), torch.zeros(8)), torch.zeros(8)
    assert not torch.equal(plan(x), plan(x))


def test_autocast_runs_the_model() -> None:
    model, x = build("vgg")
    plan = bt.optimize(model, x)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(plan(x), model(x))
