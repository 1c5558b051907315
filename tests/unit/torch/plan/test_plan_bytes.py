"""How much memory a plan takes, and that it stays within a limit."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import InvalidArgument, TorchError
from bestof.torch.plan.algorithms.native import UNPACKED
from bestof.torch.plan.algorithms.table import PYTORCH
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run.memory_limit import _cheapest_swap, _Layer
from bestof.torch.plan.run.plan_bytes import bytes_of, peak_of_values
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps import layer_reference
from bestof.torch.plan.trace.traced import trace

FEATURES = (
    2100  # 17.6 MB of weights: for a single row these are read as they are, by PyTorch or by matvec
)
X = torch.linspace(-1, 1, 3 * 12 * 12).reshape(1, 3, 12, 12)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, FEATURES),
        nn.Linear(FEATURES, FEATURES),
    ).eval()


def program_of(plan: OptimizedModel) -> Program:
    return next(reversed(plan._programs.values()))[2]


def memory_of(plan: OptimizedModel) -> Any:
    return plan.explain(repeats=1).memory


def test_only_weights_of_the_chosen_algorithms_are_kept() -> None:
    model = network()
    plan = bt.optimize(model, X)
    alive = sum(
        packed.nbytes for weights in plan._weights.values() for packed in weights._packed.values()
    )
    memory = memory_of(plan)
    assert memory.packed == alive > 0
    assert memory.model == bytes_of([*model.parameters(), *model.buffers()])
    assert memory.arena == 4 * program_of(plan).floats
    chosen = program_of(plan).decisions()
    as_they_are = (PYTORCH.name, "matvec")
    assert chosen["linear_1"] in as_they_are
    # That layer's weight is the model's own, and biases are copies.
    read = [model[8].weight.nbytes, *(part.bias.nbytes for part in (model[0], model[7], model[8]))]
    assert memory.weights == sum(read) + 4 * 32 + (
        model[7].weight.nbytes if chosen["linear"] in as_they_are else 0
    )


def test_a_released_plan_takes_the_reported_memory_and_computes_the_same() -> None:
    model = network()
    weights = [weakref.ref(model[index].weight) for index in (0, 2)]
    last = model[8].weight.data_ptr()
    plan = bt.optimize(model, X)
    expected, before = plan(X), memory_of(plan)
    del model
    gc.collect()
    assert all(weight() is not None for weight in weights)
    assert plan.release() is plan
    gc.collect()
    assert all(weight() is None for weight in weights)
    assert torch.equal(plan(X), expected)
    after = memory_of(plan)
    assert (after.own, after.model) == (before.own, 0)
    steps = [
        step.convolution for step in program_of(plan).borrow().steps if step.convolution is not None
    ]
    assert steps[-1].layer.weights.weight.data_ptr() == last
    assert [step.layer.weights.is_released for step in steps[:2]] == [True, True]


def test_values_that_pytorchs_operators_return_are_counted() -> None:
    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = self.convolution(x).flatten(2)
            return torch.softmax(rows.mT @ rows, -1).sum()

    x = torch.randn(1, 3, 24, 24)
    plan = bt.optimize(Squares().eval(), x)
    assert memory_of(plan).arena >= 2 * 4 * (24 * 24) ** 2  # the products, and what softmax returns


def test_a_plan_is_not_released_while_a_copy_of_it_still_chooses() -> None:
    plan = bt.optimize(network(), X)
    twin = copy.deepcopy(plan)
    twin(torch.cat([X, X]))  # a shape of its own, whose algorithms are not chosen
    with pytest.raises(TorchError, match="algorithms for a planned shape are not chosen"):
        plan.release()


def test_a_released_plan_refuses_new_shapes() -> None:
    plan = bt.optimize(network(), X)
    twin = copy.deepcopy(plan)
    expected = plan(X)
    plan.release()
    for one in (plan, twin):
        with pytest.raises(TorchError, match=r"loaded or released.*before saving or releasing"):
            one(torch.cat([X, X]))
        with pytest.raises(TorchError, match=r"freed by plan\.release"):
            one.save(io.BytesIO())
        assert torch.equal(one(X), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(plan(X), expected)
    plan.release()


def test_a_released_plan_runs_with_another_number_of_threads() -> None:
    plan = bt.optimize(network(), X).release()
    expected = plan(X)
    torch.set_num_threads(2)
    torch.testing.assert_close(plan(X), expected, rtol=1e-4, atol=1e-6)
    assert program_of(plan).decisions() == next(iter(plan._programs.values()))[2].decisions()


def test_a_plan_that_has_not_chosen_is_not_released() -> None:
    model, unmet = network(), X[..., :7]  # algorithms for the other one may be known to the process
    plan = bt.optimize(model, unmet, tune=False)
    with pytest.raises(TorchError, match="not chosen yet"):
        plan.release()
    with torch.no_grad():
        torch.testing.assert_close(plan(unmet), model(unmet), rtol=1e-4, atol=1e-5)
    plan(torch.cat([unmet, unmet]))  # the model is still there


@pytest.mark.parametrize("memory", [0, "eager", 19])
def test_a_limit_holds_where_it_can(memory: int | Literal["eager"]) -> None:
    model = network()
    least = memory_of(bt.optimize(model, X, memory=0))
    plan = bt.optimize(model, X, memory=memory)
    found = memory_of(plan)
    limit = found.eager if memory == "eager" else memory * 2**20
    assert found.own <= max(limit, least.own)
    assert least.own <= found.own
    with torch.no_grad():
        torch.testing.assert_close(plan(X), model(X), rtol=1e-4, atol=1e-5)
    chosen = program_of(plan).decisions()
    twice = torch.cat([X, X])
    with torch.no_grad():
        torch.testing.assert_close(plan(twice), model(twice), rtol=1e-4, atol=1e-5)
    assert program_of(plan).decisions() == chosen  # other shapes pack nothing a second time


def test_arguments_that_cannot_be_used() -> None:
    for memory in (-1, True, 1.5, "lazy"):
        with pytest.raises(InvalidArgument, match="memory: expected"):
            bt.optimize(network(), X, memory=memory)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="tune=True"):
        bt.optimize(network(), X, memory=1, tune=False)


@pytest.mark.parametrize("algorithm", ["winograd2", "winograd4", "convgemm"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_an_algorithm_computes_the_same_without_packing(
    algorithm: str, channels_last: bool
) -> None:
    model: Any = nn.Sequential(nn.Conv2d(16, 24, 3, padding=1)).eval()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 16, 13, 11, generator=torch.Generator().manual_seed(1))
    plan = bt.optimize(model, x, tune=False)
    (step,) = [step for step in program_of(plan).borrow().steps if step.convolution is not None]
    one = step.convolution
    assert one is not None
    one.placed.x.copy_(x)  # type: ignore[union-attr]
    results: list[Tensor] = []
    for name in (algorithm, algorithm + UNPACKED):
        one.placed.out.fill_(torch.nan)
        one.settle(name)
        one.run()
        results.append(one.placed.out.clone())
    assert torch.equal(*results)
    (packed,) = one.packed
    assert packed.nbytes == (0 if channels_last else model[0].weight.nbytes)
    one.layer.weights.release(one.packed)
    assert one.layer.weights.is_released == (not channels_last)


@pytest.mark.parametrize("rows", [1, 5])
def test_matvec_reads_the_models_own_weights(rows: int) -> None:
    model: Any = nn.Sequential(nn.Linear(70, 30), nn.ReLU()).eval()
    x = torch.randn(rows, 70, generator=torch.Generator().manual_seed(1))
    plan = bt.optimize(model, x, tune=False)
    binding = program_of(plan).borrow()
    binding.slots[0] = x
    (step,) = binding.steps
    one = step.convolution
    assert one is not None
    one.settle("matvec")
    one.run()
    with torch.no_grad():
        torch.testing.assert_close(one.placed.out, model(x), rtol=1e-5, atol=1e-5)
    (packed,) = one.packed
    assert (packed.nbytes, packed.layout.data_ptr()) == (0, model[0].weight.data_ptr())
    one.layer.weights.release(one.packed)
    assert not one.layer.weights.is_released


def test_a_limited_plan_is_saved_and_loaded() -> None:
    plan = bt.optimize(network(), X, memory=0)
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded = bt.load(file)
    assert torch.equal(loaded(X), plan(X))
    assert program_of(loaded).decisions() == program_of(plan).decisions()
    assert torch.equal(loaded.release()(X), plan(X))


def test_the_swap_that_costs_least_for_each_byte() -> None:
    options = {
        "fast": (1.0, 100),
        "small": (3.0, 20),
        "smaller": (9.0, 10),
        "bad": (2.0, 99),
        "large": (0.5, 200),
    }
    layer = _Layer([], options, "fast")
    swap = _cheapest_swap(layer)
    assert swap is not None
    assert swap == (2.0 / 80, layer, "small")
    assert _cheapest_swap(_Layer([], options, "smaller")) is None


def test_the_peak_of_values_is_that_of_eager_mode() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1), nn.Flatten(), nn.ReLU()
    ).eval()
    graph = trace(
        model, [torch.ones(1, 1, 5, 5)], torch.utils._pytree.tree_flatten(((X,), {}))[1]
    ).graph.graph
    assert peak_of_values(graph) == 4 * 25 * (4 + 2)


@torch.no_grad()
def test_squares_of_weights_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = bt.optimize(network(), X)
    whole: list[float] = []
    for floats in (2**30, 100):
        monkeypatch.setattr(layer_reference, "_SQUARED_FLOATS", floats)
        for step in program_of(plan).borrow().steps:
            if (one := step.convolution) is not None:
                shape = (
                    one.placed.x.shape
                    if isinstance(one.placed.x, Tensor)
                    else (1, one.layer.weights.weight.shape[1])
                )
                x = torch.rand(shape, generator=torch.Generator().manual_seed(2))
                weight = one.layer.weights.folded()
                whole.append(layer_reference.mean_of_squares(one.layer, x, weight))
    half = len(whole) // 2
    assert half == 4
    assert whole[half:] == pytest.approx(whole[:half], rel=1e-5)
