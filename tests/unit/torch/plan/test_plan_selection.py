"""The problem of a fused convolution, and the algorithms that it is given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.accuracy import Accuracy
from bestof.errors import BestofWarning, InvalidArgument
from bestof.kernels import algorithms, build, matmul_algorithms
from bestof.selection import BestOf, Fixed, use_policy, use_store
from bestof.selection.state.registry import Defaults
from bestof.selection.state.tuning import applies
from bestof.selection.store.memory import MemoryStore
from bestof.torch.dispatch.convolution.layer import ConvolutionLayer
from bestof.torch.dispatch.override import Override
from bestof.torch.ops.convolution.passes import PASSES
from bestof.torch.ops.table import OPERATIONS
from bestof.torch.plan.algorithms import native
from bestof.torch.plan.algorithms.algorithm import PlacedLayer
from bestof.torch.plan.algorithms.onednn import OneDnn
from bestof.torch.plan.algorithms.table import promised_error
from bestof.torch.plan.layers.frozen_weights import FrozenWeights
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.layers.problem import FusedProblem, problem_of
from bestof.torch.plan.run import tuning
from bestof.torch.plan.steps import convolution_step, raced_step
from bestof.torch.plan.steps.convolution_step import neighbourhood, selector


def problem(
    accuracy: Accuracy = "float32", x: tuple[int, ...] = (2, 8, 12, 12), activation: str = "relu"
) -> FusedProblem:
    weights = FrozenWeights(torch.randn(8, 8, 3, 3), torch.randn(8), None, 1)
    return problem_of(Layer(weights, padding=(1, 1), activation=activation), accuracy, x, False)


def linear(rows: int, ins: int, outs: int, accuracy: Accuracy = "float32") -> FusedProblem:
    weights = FrozenWeights(torch.empty(outs, ins), None, None, 1)
    return problem_of(Layer(weights, linear=True), accuracy, (rows, ins), False)


def fast(*names: str) -> set[str]:
    """Return those of these products for which this machine has instructions."""
    rows = matmul_algorithms((1, 1), (1, 1))
    return {name for name in names if not rows[name].algorithm.emulated}


def pointwise(accuracy: Accuracy = "float32", **geometry: Any) -> FusedProblem:
    weights = FrozenWeights(torch.empty(8, 8, 1, 1), None, None, 1)
    return problem_of(Layer(weights, **geometry), accuracy, (2, 8, 12, 12), False)


def applying(one: FusedProblem) -> set[str]:
    return {
        alternative.name for alternative in selector().alternatives if applies(alternative, one)
    }


def test_every_field_counts() -> None:
    texts = [
        problem().canonical(),
        problem("relaxed").canonical(),
        problem(activation="").canonical(),
        problem(x=(3, 8, 12, 12)).canonical(),
        problem()._replace(residual=True).canonical(),
        problem()._replace(gated=True).canonical(),
        problem()._replace(pitch=24).canonical(),
        linear(2, 3, 4).canonical(),
    ]
    assert len(set(texts)) == len(texts)


def test_accuracy_decides_about_the_largest_tiles() -> None:
    assert "winograd6" not in applying(problem())
    assert {"winograd2", "winograd4", "winograd6"} <= applying(problem("relaxed"))


def test_where_winograd_saves_most_only_one_algorithm_multiplies_everything() -> None:
    weights = FrozenWeights(torch.empty(64, 64, 3, 3), None, None, 1)
    wide = problem_of(Layer(weights, padding=(1, 1)), "float32", (1, 64, 28, 28), False)
    usual = {"onednn", "convgemm", "winograd2", "winograd4"}
    # Of parts of bfloat16, tile registers multiply more.
    by_parts = {name for name, row in algorithms().items() if row.parts and not row.emulated}
    assert applying(wide) == usual | by_parts
    strided = problem_of(
        Layer(weights, padding=(1, 1), stride=(2, 2)), "float32", (1, 64, 28, 28), False
    )
    assert {"onednn", "convgemm", "direct", "im2row"} <= applying(strided)
    assert {"direct", "im2row"} <= applying(problem())


def test_large_weights_are_not_kept_twice_for_two_rows() -> None:
    assert (
        applying(linear(1, 4096, 2048)) == applying(linear(2, 4096, 2048)) == {"pytorch", "matvec"}
    )
    assert applying(linear(8, 4096, 2048)) == {"pytorch", "convgemm", "matvec", "blocked"}
    assert applying(linear(9, 4096, 2048)) == {"pytorch", "convgemm", "blocked"}
    assert applying(linear(1, 64, 32)) == {"pytorch", "convgemm", "matvec", "blocked"}
    assert not linear(1, 64, 32).native["matvec"].packs
    assert linear(1, 64, 32).native["convgemm"].packs


def test_convolutions_of_single_pixels_are_products_too() -> None:
    assert "blocked" in applying(pointwise())
    found = {one for one in applying(pointwise("relaxed")) if one.startswith("blocked")}
    assert found == {"blocked"} | fast("blocked_bf16", "blocked_bf16x3")
    assert "blocked" not in applying(pointwise("exact"))
    grouped = FrozenWeights(torch.empty(8, 4, 1, 1), None, None, 2)
    others = [
        pointwise(stride=(2, 2)),
        pointwise(padding=(0, 1)),
        problem_of(Layer(grouped, groups=2), "float32", (2, 8, 12, 12), False),
        problem(),
    ]
    assert not [one for one in others if any(name.startswith("blocked") for name in applying(one))]


@pytest.mark.parametrize("paired", [False, True])
def test_bfloat16_weights_are_used_only_on_request(
    paired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = dict(algorithms())
    rows["convgemm_bf16"] = replace(rows["convgemm_bf16"], emulated=not paired)
    monkeypatch.setattr(native, "algorithms", lambda: rows)
    pairs = {"convgemm_bf16"} if paired else set()  # elsewhere the same, and slower than float32
    assert applying(linear(1, 4096, 2048, "relaxed")) == {"pytorch", "matvec", "matvec_bf16"}
    few = {"pytorch", "matvec", "matvec_bf16", "convgemm", "blocked"}
    assert applying(linear(8, 64, 32, "relaxed")) == few | pairs | fast("blocked_bf16")
    assert applying(problem("relaxed")) & {"convgemm_bf16"} == pairs
    assert not {
        name for name in applying(problem()) | applying(linear(1, 64, 32)) if name.endswith("_bf16")
    }
    weights = FrozenWeights(torch.empty(8, 1, 3, 3), None, None, 8)
    depthwise = problem_of(
        Layer(weights, padding=(1, 1), groups=8), "relaxed", (1, 8, 12, 12), False
    )
    assert "convgemm_bf16" not in applying(depthwise)


def test_an_undecided_layer_errs_by_at_most_its_accuracy() -> None:
    assert promised_error(problem(), None) == promised_error(problem(), "winograd4") < 1e-5
    assert (
        promised_error(problem("relaxed"), None)
        == promised_error(problem("relaxed"), "convgemm_bf16")
        > 1e-3
    )


def test_layers_with_equal_problems_share_the_decision() -> None:
    selector.cache_clear()
    model = nn.Sequential(*[nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)]).eval()
    plan = bt.optimize(model, torch.randn(1, 8, 12, 12))
    report = selector().report()
    assert len(report.problems) == 1
    assert {step.algorithm for step in plan.explain().steps if step.algorithm} == {
        report.problems[0].decision
    }
    selector.cache_clear()


def test_a_policy_that_fixes_an_alternative_of_other_selectors_is_left_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Defaults, "policy", Fixed("native winograd4"))
    selectors = [one.selector for one in (convolution_step, raced_step)]
    for one in selectors:
        one.cache_clear()
    try:
        net = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.LayerNorm(800)).eval()
        x = torch.randn(1, 8, 12, 12)
        with torch.no_grad():
            torch.testing.assert_close(bt.optimize(net, x)(x), net(x), rtol=1e-4, atol=1e-4)
        assert all(one().report().problems[0].settled for one in selectors)
    finally:
        for one in selectors:
            one.cache_clear()


@pytest.mark.parametrize("batch", [1, 3, 37])
def test_neighbours_are_the_same_layer_for_other_batches(batch: int) -> None:
    near = neighbourhood()
    for other in (100, batch, 2, 40):
        near(problem(x=(other, 8, 12, 12)))
        near(linear(other, 64, 32))
    near(problem(x=(batch, 8, 12, 12), activation=""))
    neighbours = list(near(problem(x=(batch, 8, 12, 12))))
    assert set(neighbours) == {problem(x=(other, 8, 12, 12)) for other in (2, 40, 100)}
    assert abs(neighbours[0].convolution.input_shape[0] - batch) <= 4
    rows = list(near(linear(batch, 64, 32)))
    assert set(rows) == {linear(other, 64, 32) for other in (2, 40, 100)}


def of_a_layer() -> list[BestOf]:
    layer = ConvolutionLayer(tuple(map(Override, PASSES)))
    return [layer.layer, *(one for one, _ in layer.passes)]


SELECTORS: dict[str, Callable[[], list[BestOf]]] = {
    "plan": lambda: [selector()],
    "layer and passes": of_a_layer,
    "operations": lambda: [Override(one).selector for one in OPERATIONS],
}


@pytest.mark.parametrize("selectors", SELECTORS.values(), ids=SELECTORS)
def test_stored_times_of_another_build_of_the_kernels_are_not_used(
    selectors: Callable[[], list[BestOf]],
) -> None:
    alternatives = [alternative for one in selectors() for alternative in one.alternatives]
    assert alternatives
    assert not [one.name for one in alternatives if f"kernels {build()}" not in one.version]


@pytest.mark.parametrize("budget", [1, 2**40])
def test_one_layer_of_each_problem_races_and_as_many_at_a_time_as_memory_allows(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(tuning, "_RACED_BYTES", budget)
    torch.manual_seed(0)
    model = nn.Sequential(
        *[nn.Conv2d(9, 9, 3, padding=1) for _ in range(3)], nn.Conv2d(9, 5, 3)
    ).eval()
    x = torch.randn(
        1, 9, 19, 21 + (budget == 1)
    )  # of no other test: the selector knows nothing yet
    plan = bt.optimize(model, x, tune=False)
    program = plan.program([x], pytree.tree_flatten(((x,), {}))[1])[0]
    binding = program.borrow()
    convolutions = [step.convolution for step in binding.steps if step.convolution is not None]
    heats = list(tuning._heats(binding))
    program.give_back(binding)
    assert [len(heat) for heat in heats] == ([1, 1] if budget == 1 else [2])
    tuning.tune(program, [x])
    assert len(program.decisions()) == len(convolutions) == 4
    with torch.no_grad():
        torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-5)


def _fails(self: OneDnn, placed: PlacedLayer) -> None:  # the arguments of `bind`
    raise RuntimeError("could not create a primitive")


def test_an_algorithm_that_fails_while_plans_are_tuned_is_only_taken_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OneDnn, "bind", _fails)
    model = nn.Sequential(
        nn.Conv2d(7, 7, 3, padding=1), nn.Conv2d(7, 7, 3, padding=1), nn.Conv2d(7, 6, 3)
    ).eval()
    x = torch.randn(1, 7, 23, 29)  # of no other test
    with pytest.warns(BestofWarning, match="could not create a primitive"):
        plan = bt.optimize(model, x)
    with torch.no_grad():
        torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-5)


def test_what_is_decided_already_is_not_packed_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[str] = []
    keep = FrozenWeights.kept
    monkeypatch.setattr(
        FrozenWeights,
        "kept",
        lambda self, key, make: (packed.append(key[0]), keep(self, key, make))[1],
    )
    monkeypatch.setenv("BESTOF_FORCE", "fused convolution=convgemm")
    selector.cache_clear()  # orders are read when a selector is made
    try:
        bt.optimize(nn.Conv2d(7, 7, 3, padding=1).eval(), torch.randn(1, 7, 31, 29))
    finally:
        selector.cache_clear()
    assert set(packed) == {"convgemm"}


def chosen(model: nn.Module, *shape: int) -> list[str | None]:
    """Return what a new plan has chosen, by new selectors: they read orders when they are made."""
    selectors = convolution_step.selector, raced_step.selector
    for one in selectors:
        one.cache_clear()
    try:
        plan = bt.optimize(model.eval(), torch.randn(shape))
    finally:
        for one in selectors:
            one.cache_clear()
    program = next(iter(plan._programs.values())).program
    return [one.algorithm for one in program.choices.values()]


def test_an_order_takes_an_algorithm_that_is_thought_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shape = nn.Conv2d(64, 64, 3, padding=1), (1, 64, 28, 28)  # where Winograd saves most
    assert "direct" not in applying(problem_of_layer(model, shape))
    monkeypatch.setenv("BESTOF_FORCE", "fused convolution=direct")
    assert chosen(model, *shape) == ["direct"]
    monkeypatch.delenv("BESTOF_FORCE")
    use_policy("fixed:im2row")
    try:
        assert chosen(model, *shape) == ["im2row"]
        assert chosen(nn.Linear(64, 32), 3, 64) == ["im2row"]
    finally:
        use_policy(None)
    store = MemoryStore()
    store.pin("fused convolution", "pytorch")  # where oneDNN stands for it
    use_store(store)
    try:
        assert chosen(model, *shape) == ["pytorch"]
    finally:
        use_store(None)


def problem_of_layer(model: nn.Conv2d, shape: tuple[int, ...]) -> FusedProblem:
    weights = FrozenWeights(model.weight, model.bias, None, 1)
    return problem_of(Layer(weights, padding=(1, 1)), "float32", shape, False)


@pytest.mark.filterwarnings("ignore:kernel.only leaves nothing")
def test_the_configuration_names_what_plans_choose_among() -> None:
    wide = problem_of_layer(nn.Conv2d(64, 64, 3, padding=1), (1, 64, 28, 28))
    norm = nn.LayerNorm(48)
    try:
        bt.enable({"kernel": {"only": ["native direct", "native matvec"]}})
        assert applying(wide) == {"onednn", "direct"}
        assert applying(linear(3, 64, 32)) == {"pytorch", "matvec", "direct"}
        assert chosen(norm, 5, 48) == ["pytorch"]
        bt.enable({"kernel": {"without": ["native"]}})
        assert chosen(norm, 5, 48) == ["pytorch"]
        assert "convgemm" in applying(wide)
        with pytest.raises(InvalidArgument, match="no row 'native nothing'"):
            bt.enable({"kernel": {"only": ["native nothing"]}})
    finally:
        bt.disable()


def test_a_used_up_budget_does_not_hold_optimize_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Defaults.budget, "is_on", True)
    monkeypatch.setattr(Defaults.budget, "lost", 1e9)
    monkeypatch.setattr(tuning, "_MOST_RUNS", 300)
    assert chosen(nn.Conv2d(32, 32, 3, padding=1), 2, 32, 61, 59) != [None]
    assert Defaults.budget.lost == 1e9


def test_a_policy_without_an_end_leaves_the_rest_to_the_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "_MOST_RUNS", 5)
    model = nn.Sequential(nn.Conv2d(7, 7, 3, padding=1), nn.Conv2d(7, 6, 3)).eval()
    x = torch.randn(1, 7, 33, 29)  # of no other test
    plan = bt.optimize(model, x)
    with torch.no_grad():
        torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-5)
    program = next(iter(plan._programs.values())).program
    assert program.decisions() == {}


@pytest.mark.parametrize("seed", range(14, 18))
def test_a_single_output_that_cancels_is_no_reason_to_refuse_bfloat16(seed: int) -> None:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bt.optimize(nn.Linear(512, 1).eval(), torch.randn(1, 512).relu(), accuracy="relaxed")


def test_a_terminal_sees_how_many_choices_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []

    @contextmanager
    def bar(_after: float) -> Iterator[Callable[..., None]]:
        yield lambda _text, step, steps: told.append((step, steps))

    monkeypatch.setattr(tuning, "late_progress_bar", bar)
    model = nn.Sequential(nn.Linear(23, 29), nn.Linear(29, 31)).eval()
    bt.optimize(model, torch.randn(3, 23))
    assert told[-1] == (2, 2)
    assert told == sorted(told)
