"""What verification compares, where numbers are huge, tiny or none, and where PyTorch errs."""

from __future__ import annotations

import copy
import math
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plan_regimes import example, settle_natively
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import BestofWarning, TorchError
from bestof.torch.ops import distance as distances
from bestof.torch.ops.comparison import energies
from bestof.torch.ops.distance import Size, differences, finite, peak, rms
from bestof.torch.ops.row import Row
from bestof.torch.plan import optimized as optimizing
from bestof.torch.plan.algorithms.algorithm import Bound, PlacedLayer
from bestof.torch.plan.algorithms.native import Native
from bestof.torch.plan.algorithms.product import Product
from bestof.torch.plan.algorithms.table import applicable
from bestof.torch.plan.layers.frozen_weights import FrozenWeights
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.layers.problem import FusedProblem, problem_of
from bestof.torch.plan.operations.row_norm import RowNorm
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps import layer_reference
from bestof.torch.plan.steps.layer_reference import (
    compared_images,
    error_of,
    mean_of_squares,
    promise_of,
)
from bestof.torch.plan.steps.raced_step import RacedStep
from bestof.torch.plan.steps.row_step import RowProblem, RowStep
from bestof.torch.plan.verify import bounds, injected_errors, verification
from bestof.torch.plan.verify.injected_errors import Moved
from bestof.torch.plan.verify.verification_inputs import are_usual, finite_inputs, normal_inputs

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizing, "tune", settle_natively)


def chosen(plan: bt.OptimizedModel) -> list[str | None]:
    program: Program = next(iter(plan._programs.values()))[2]
    return [one.algorithm for one in program.choices.values()]


def scale_layers(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Let native layers be wrong by a factor."""
    for kind in (Native, Product):
        bind: Any = kind.bind

        def wrong(row: Any, placed: PlacedLayer, bind: Any = bind) -> Bound:
            bound = bind(row, placed)
            return Bound(lambda: (bound.run(), placed.out.mul_(factor)), bound.packed)

        monkeypatch.setattr(kind, "bind", wrong)


def scale_norms(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Let native norms be wrong by a factor."""
    make = RacedStep.__init__

    def wrong(self: Any, choice: Any, pytorch: Any, native: Any, *rest: Any) -> None:
        make(self, choice, pytorch, lambda: (native(), rest[1].mul_(factor)), *rest)

    monkeypatch.setattr(RacedStep, "__init__", wrong)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1.0, 1e18, 1e25, 5e37])
def test_sizes_of_numbers_whose_squares_float32_has_not(size: float) -> None:
    values = torch.tensor([3.0, 4.0, -1.0, 0.0])
    assert rms(values * size) == pytest.approx(26**0.5 / 2 * size, rel=1e-5)
    assert peak(values * size) == pytest.approx(4 * size, rel=1e-6)
    assert rms((values * size).bfloat16()) == pytest.approx(26**0.5 / 2 * size, rel=1e-2)
    assert rms(values.double() * size**5) == pytest.approx(26**0.5 / 2 * size**5, rel=1e-6)
    layer = Layer(None, linear=True)  # type: ignore[arg-type]  # its weights are passed below
    weight = torch.tensor([[1.0, 2.0], [0.0, 3.0]])
    for x in (torch.tensor([[2.0, 1.0]]), torch.tensor([[2.0, 1.0], [NAN, INF]])):
        found = mean_of_squares(layer, x * size, weight)
        assert found * len(x) == pytest.approx((8 + 9) / 2 * size * size, rel=1e-5)


def test_sizes_of_no_numbers() -> None:
    assert rms(torch.zeros(3)) == peak(torch.zeros(3)) == rms(torch.empty(0)) == 0
    assert rms(torch.tensor([1.0, -INF])) == INF
    assert rms(torch.tensor([1.0, NAN])) != rms(torch.tensor([1.0, NAN]))
    assert finite(torch.tensor([1.0, NAN, -INF])).tolist() == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bad", [-7.0, 9.0, math.inf, -math.inf, math.nan])
def test_the_peak_of_any_layout(dtype: torch.dtype, bad: float) -> None:
    values = torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    values[1, 2, 3, 4] = bad
    last = values.contiguous(memory_format=torch.channels_last)
    for one in (values, last, last[:, ::2], values.transpose(0, 3), values[1, 2, 3, 4]):
        assert peak(one) == abs(bad) or (math.isnan(bad) and math.isnan(peak(one)))
    values[0, 0, 0, 0] = math.inf
    assert math.isnan(peak(values)) == math.isnan(bad)


@pytest.mark.parametrize("piece", [1, 7, 100, 2**22])
@pytest.mark.parametrize("bad", [0.0, NAN, INF, 1e30])
def test_sizes_and_distances_of_parts_are_those_of_the_whole(
    bad: float, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    right = torch.randn(2, 6, 5, 7, generator=generator)
    got = right + 1e-3 * torch.randn(2, 6, 5, 7, generator=generator)
    right[1, 2, 3, 4] = got[1, 2, 3, 4] = bad
    last = got.contiguous(memory_format=torch.channels_last)
    numbers, (same, off) = finite(right), differences(got, right)
    squares = torch.nan_to_num(right, 0.0, 0.0, 0.0).double().square()
    monkeypatch.setattr(distances, "PIECE", piece)
    for one in (got, last, last.permute(1, 0, 3, 2).permute(1, 0, 3, 2)):
        size, found = distances.size_of(right), distances.distance(one, right)
        assert size.rms == pytest.approx(rms(numbers), rel=1e-6)
        assert (size.peak, size.many) == (peak(numbers), numbers.numel())
        assert found.same == same
        assert found.off.rms == pytest.approx(rms(off), rel=1e-6)
        assert (found.off.peak, found.off.many) == (peak(off), off.numel())
        assert distances.moved(one, right) == found.off
    for axes in [(0, 2), (-1,), (-2,), (0, 2, 3)]:
        assert torch.allclose(energies(right, axes), squares.sum(axes), rtol=1e-5)
    right[0, 0, 0, 0] = INF
    assert not distances.distance(got, right).same
    right[0, 0, 0, 0], got[0, 0, 0, 0] = 3e38, -3e38
    assert distances.distance(got, right).off.peak == INF
    assert distances.moved(got, right).peak < 1


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation"), [(1, 0, 1), (1, 1, 1), (2, 3, 1), (3, 2, 2), (5, 4, 3)]
)
def test_the_mean_of_squared_terms_is_that_of_a_convolution_of_squares(
    groups: int, stride: int, padding: int, dilation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, 9, 7, generator=generator)
    weight = torch.randn(12, 6 // groups, 3, 2, generator=generator)
    weights = FrozenWeights(weight, None, None, groups)
    geometry = (stride, stride), (padding, padding), (dilation, dilation)
    layer = Layer(weights, *geometry, groups)
    squares = torch.conv2d(x.double().square(), weight.double().square(), None, *geometry, groups)
    for piece in (2**22, 200):
        monkeypatch.setattr(layer_reference, "PIECE", piece)
        found = mean_of_squares(layer, x, weight)
        assert found == pytest.approx(float(squares.mean()), rel=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 48])
def test_results_of_some_filters_are_those_of_all(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts as in one, and the parts are all filters."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 48, 9, 7, generator=generator)
    weight = torch.randn(96, 48 // groups, 3, 3, generator=generator)
    bias = torch.randn(96, generator=generator)
    layer = Layer(FrozenWeights(weight, bias, None, groups), padding=(1, 1), groups=groups)
    residual = torch.randn(2, 96, 9, 7, generator=generator)
    promise = layer_reference.Promise("nothing", 1e-7)
    whole = torch.conv2d(x, weight, bias, 1, 1, 1, groups) + residual
    monkeypatch.setattr(layer_reference, "PIECE", 100)
    parts = list(layer_reference.reference(layer, promise, x, residual))
    assert len(parts) == {1: 6, 2: 2, 48: 6}[groups]
    joined = torch.cat([one.right for one in parts], 1)
    # Sums of up to 432 products and of two numbers more, in another order.
    assert (joined - whole).norm() <= 2 * math.sqrt(434) * torch.finfo().eps * whole.norm()


def test_sums_of_bfloat16_err_as_their_algorithm_promises() -> None:
    """Of operands that are rounded already: what Winograd's transforms add remains."""
    layers = {
        dtype: Layer(FrozenWeights(torch.randn(8, 600, 3, 3, dtype=dtype), None, None, 1))
        for dtype in (torch.float32, torch.bfloat16)
    }
    wide, half = (
        problem_of(layer, "float32", (1, 600, 9, 9), residual=False) for layer in layers.values()
    )
    plain = promise_of(half, "convgemm_bf16")
    assert plain == promise_of(half, "convgemm")
    assert plain.error < 4e-6
    for name in ("winograd2", "winograd4", "winograd6"):
        promise = promise_of(half, name)
        assert promise == layer_reference.Promise("both", error_of(wide, name))
        assert plain.error < promise.error < 5e-5
    assert promise_of(half, None) == promise_of(half, "winograd6")


def test_nan_is_the_same_as_nan_only_and_infinity_by_sign() -> None:
    right = torch.tensor([1.0, NAN, INF, -INF])
    assert differences(right.clone(), right)[0]
    assert differences(right.bfloat16(), right.double())[0]
    for place, value in [(1, 0.5), (1, 0.0), (1, INF), (2, -INF), (2, NAN), (3, 1.0), (0, NAN)]:
        got = right.clone()
        got[place] = value
        assert not differences(got, right)[0], (place, value)
    same, off = differences(torch.tensor([3.0, NAN]), torch.tensor([1.0, NAN]))
    assert same
    assert off.tolist() == [2]


def put_for_nan_and_infinity(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    """Let plans return a number where their result is NaN or infinite."""
    run = Program.run

    def changed(self: Program, *args: Any, **kwargs: Any) -> list[Any]:
        (output,) = run(self, *args, **kwargs)
        return [torch.where(torch.isfinite(output), output, wrong)]

    monkeypatch.setattr(Program, "run", changed)


@pytest.mark.parametrize(("wrong", "value"), [(0.5, NAN), (INF, NAN), (-INF, INF), (0.5, INF)])
def test_a_result_with_another_value_for_nan_or_infinity_is_refused(
    wrong: float, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_for_nan_and_infinity(monkeypatch, wrong)
    x = torch.randn(4, 8)
    x[1, 2] = value
    with pytest.raises(TorchError, match="NaN or infinity"):
        bt.optimize(nn.MaxPool1d(2).eval(), x)


def settle_by(name: str) -> Any:
    """Return what settles the layers that an algorithm computes, in place of a race."""

    def settle(program: Program, _: Any) -> None:
        for choice in program.choices.values():
            if isinstance(choice.problem, FusedProblem) and name in applicable(choice.problem):
                choice.settle(name)
        program.bind_anew()

    return settle


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6])
def test_a_library_that_loses_nan_of_the_example_loses_to_pytorch(
    activation: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN gives 0 for NaN. Such a plan was refused."""
    model, x = nn.Sequential(nn.Conv2d(16, 16, 3), activation()).eval(), torch.randn(2, 16, 9, 9)
    monkeypatch.setattr(optimizing, "tune", settle_by("onednn"))
    if chosen(bt.optimize(model, x)) != ["onednn"]:
        pytest.skip("PyTorch has no oneDNN here")
    x[1, 3, 4, 4], x[0, 3, 2, 2] = NAN, INF
    with pytest.warns(BestofWarning, match="onednn puts NaN or infinity elsewhere") as told:
        plan = bt.optimize(model, x)
    assert {one.filename for one in told} == {__file__}
    assert chosen(plan) == ["pytorch"]
    assert distances.distance(plan(x), model(x).detach()).same


@pytest.mark.parametrize("value", [INF, -INF])
@pytest.mark.parametrize("algorithm", ["direct", "pytorch"])
def test_nan_that_the_model_makes_of_infinity_refuses_no_plan(
    algorithm: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's GELU by oneDNN gives NaN for infinity. Its own kernel and float64 do not."""
    monkeypatch.setattr(optimizing, "tune", settle_by(algorithm))
    model, x = nn.Sequential(nn.Conv2d(16, 16, 3), nn.GELU()).eval(), torch.randn(2, 16, 9, 9)
    x[1, 3, 4, 4] = value
    plan = bt.optimize(model, x)
    found, theirs = plan(x), model(x).detach()
    right = copy.deepcopy(model).double()(x.double()).detach().float()
    numbers = torch.isfinite(found) & torch.isfinite(theirs)
    for got, one, exact in zip(found[~numbers], theirs[~numbers], right[~numbers], strict=True):
        assert torch.equal(got.nan_to_num(7.0), one.nan_to_num(7.0)) or torch.equal(
            got.nan_to_num(7.0), exact.nan_to_num(7.0)
        )


@pytest.mark.parametrize("wrong", [0.5, -INF])
def test_a_value_that_neither_the_model_nor_float64_has_is_refused(
    wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_for_nan_and_infinity(monkeypatch, wrong)
    model, x = nn.Sequential(nn.Conv2d(16, 16, 3), nn.GELU()).eval(), torch.randn(2, 16, 9, 9)
    x[1, 3, 4, 4] = INF
    with pytest.raises(TorchError, match="NaN or infinity"):
        bt.optimize(model, x)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("activation", [nn.Identity, nn.ReLU, nn.GELU, nn.SiLU])
def test_live_checks_take_no_nan_for_a_fault_and_find_faults_behind_it(
    activation: type[nn.Module], value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Normal numbers decide where values hold NaN or infinity."""
    model, x = nn.Sequential(nn.Conv2d(16, 16, 3), activation()).eval(), torch.randn(2, 16, 9, 9)
    poisoned = x.clone()
    poisoned[1, 3, 4, 4] = value

    def told(plan: bt.OptimizedModel) -> list[str | None]:
        program = next(iter(plan._programs.values())).program
        binding = program.borrow()
        binding.slots[0] = poisoned
        found = []
        for step in binding.steps:
            if step.chosen is not None and step.chosen.is_comparable:
                found.append(step.chosen.complaint())
            step.run()
        program.give_back(binding)
        return found

    found = told(bt.optimize(model, x))
    assert found
    assert found == [None] * len(found)
    monkeypatch.setattr(verification, "verify", lambda *_: True)
    scale_layers(monkeypatch, 1.5)
    (wrong,) = [one for one in told(bt.optimize(model, x)) if one is not None]
    assert "random values" in wrong


class Poisoned(nn.Module):
    """NaN that does not come from the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * NAN)


@pytest.mark.parametrize("model", [Poisoned(), nn.Sequential(nn.Linear(8, 8))])
def test_a_wrong_kernel_that_nan_hides_is_found(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.full((4, 8), NAN)
    assert not {"pytorch", "onednn"} & {*chosen(bt.optimize(model.eval(), x))}
    scale_layers(monkeypatch, 1.5)
    with pytest.warns(BestofWarning, match="is off by"):
        plan = bt.optimize(model, x)
    assert chosen(plan) == ["pytorch"]


def test_nan_reaches_no_tile_of_winograds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile of Winograd's would be all NaN if one pixel is: PyTorch computes such a call."""

    def settle(program: Program, _: Any) -> None:
        for choice in program.choices.values():
            choice.settle("winograd4")

    monkeypatch.setattr(optimizing, "tune", settle)
    model, x = nn.Conv2d(8, 8, 3).eval(), torch.randn(1, 8, 18, 18)
    x[0, 0, 9, 9] = NAN
    plan = bt.optimize(model, x)
    assert chosen(plan) == ["winograd4"]
    assert torch.equal(torch.isnan(plan(x)), torch.isnan(model(x)))


@pytest.mark.parametrize("offset", [1e3, 1e6])
def test_pytorchs_error_does_not_refuse_a_norm(
    offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch errs by 3e-5 near 1,000, and by 3e-2 near 1e6. The kernel does not."""
    model, x = nn.LayerNorm(64).eval(), torch.randn(16, 64) + offset
    plan = bt.optimize(model, x)
    assert chosen(plan) == ["native"]
    right = nn.functional.layer_norm(x.double(), (64,))
    assert rms(model(x).detach() - right) > 1e-5
    assert rms(plan(x) - right) < 2e-7
    scale_norms(monkeypatch, 1.001)
    with pytest.warns(BestofWarning, match="is off by"):
        plan = bt.optimize(model, x)
    assert torch.equal(plan(x), model(x))


def test_a_norm_of_one_number_of_bfloat16() -> None:
    """The result is the shift, and roundings of 0 in PyTorch's."""
    model = nn.LayerNorm(1).eval().bfloat16()
    assert chosen(bt.optimize(model, torch.randn(16, 1).bfloat16())) == ["native"]


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_all_forms_of_a_norm_wrong_alike_are_refused(
    offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of PyTorch, of the kernel, and of the float64 reference."""
    bind = RowNorm.bind

    def wrong(self: RowNorm, *args: Any) -> Any:
        return bind(RowNorm(self.centred, self.eps, False, False, self.added), *args)

    monkeypatch.setattr(RowNorm, "bind", wrong)
    model, x = nn.LayerNorm(64).eval(), torch.randn(16, 64) + offset
    nn.init.constant_(model.weight, 1.2)
    with pytest.raises(TorchError, match="differs from the model's"):
        bt.optimize(model, x)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_a_reference_that_is_wrong_as_the_kernel_is_found(
    offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's error could hide it on the example, and does not on normal numbers."""
    make = RacedStep.__init__

    def wrong(
        self: Any, choice: Any, pytorch: Any, native: Any, reference: Any, *rest: Any
    ) -> None:
        def kernel() -> None:
            native()
            rest[0].mul_(1.2)

        make(self, choice, pytorch, kernel, lambda: reference() * 1.2, *rest)

    monkeypatch.setattr(RacedStep, "__init__", wrong)
    model, x = nn.LayerNorm(64).eval(), torch.randn(16, 64) + offset
    with pytest.warns(BestofWarning, match="float64 differ from PyTorch"):
        plan = bt.optimize(model, x)
    assert torch.equal(plan(x), model(x))


def test_outputs_that_the_errors_of_pytorchs_norm_do_not_explain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if the comparison of the step missed it."""
    monkeypatch.setattr(verification, "verify_steps", lambda *_: {})
    scale_norms(monkeypatch, 1.001)
    model, x = nn.LayerNorm(64).eval(), torch.randn(16, 64) + 1e3
    with pytest.warns(BestofWarning, match="PyTorch's operators take their place") as told:
        plan = bt.optimize(model, x)
    assert {one.filename for one in told} == {__file__}
    assert torch.equal(plan(x), model(x))


def images(offset: float) -> tuple[nn.Module, Tensor]:
    """A norm of several axes, which a row of the table computes, and a layer behind it.

    The numbers are nearly equal beside their offset.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm((32, 64, 64)), nn.SiLU(), nn.Linear(64, 8)).eval()
    return model, torch.randn(4, 32, 64, 64) + offset


def leave_rows_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let choices stay open, whose next alternative is native."""
    monkeypatch.setattr(optimizing, "tune", lambda *_: None)
    monkeypatch.setattr(RowStep, "select", lambda self: self.runner("native")())


def skip_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only outputs be compared, not the results of steps."""

    def skipped(program: Program, _: Any) -> dict[str, float]:
        return dict.fromkeys(injected_errors.promised_errors(program), 1.0)

    monkeypatch.setattr(verification, "verify_steps", skipped)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("offset", [1e2, 1e3, 1e5])
def test_pytorchs_error_does_not_refuse_a_norm_by_a_row(
    offset: float, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a plan was refused: "differs by 0.000256 rms where rounding explains 5.72e-06"."""
    if is_open:
        leave_rows_open(monkeypatch)
    model, x = images(offset)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BestofWarning)
        plan = bt.optimize(model, x)
    assert is_open or "native" in chosen(plan)
    right = copy.deepcopy(model).double()(x.double()).detach()
    theirs = rms(model(x).detach() - right)
    assert theirs > 1e-6
    assert rms(plan(x) - right) < theirs / 2


@pytest.mark.parametrize("is_open", [False, True])
def test_outputs_that_the_errors_of_a_norm_by_a_row_do_not_explain(
    is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the comparison of the step missed it."""
    computed = RowStep._computed

    def wrong(self: RowStep, row: Row[Any]) -> Any:
        found = computed(self, row)
        if row.name != "native" or self.problem.operation.name != "layer norm":
            return found
        return lambda operands: tuple(one * 1.001 for one in found(operands))

    if is_open:
        leave_rows_open(monkeypatch)
    monkeypatch.setattr(RowStep, "_computed", wrong)
    skip_steps(monkeypatch)
    model, x = images(1e3)
    with pytest.warns(BestofWarning, match="PyTorch's operators take their place"):
        plan = bt.optimize(model, x)
    assert "native" not in [
        one.algorithm
        for one in next(iter(plan._programs.values())).program.choices.values()
        if isinstance(one.problem, RowProblem)
    ]
    assert rms(plan(x) - model(x).detach()) < 1e-5


def test_a_wrong_layer_is_refused_behind_a_norm_of_nearly_equal_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch's error of the norm does not explain it: the layer is off by a hundredth."""
    skip_steps(monkeypatch)
    scale_layers(monkeypatch, 1.01)
    model, x = images(1e3)
    with pytest.raises(TorchError, match="where rounding explains"):
        bt.optimize(model, x)


def test_inputs_that_tell_more() -> None:
    x = torch.tensor([[2.0, NAN, -INF, 2.0]]).expand(3, 4)
    ids = torch.tensor([1, 2])
    found = finite_inputs([x, ids])
    assert found is not None
    assert found[0].stride() == x.stride()
    assert found[0][0, [0, 3]].tolist() == [2, 2]
    assert torch.isfinite(found[0]).all()
    assert found[1] is ids
    assert finite_inputs([ids, torch.randn(3)]) is None
    assert normal_inputs([ids]) is None
    other = normal_inputs([torch.full((50, 50), 1e6), ids])
    assert other is not None
    assert rms(other[0]) == pytest.approx(1, rel=0.1)
    assert are_usual([torch.zeros(3), ids])
    for regime in ("0", "1e-30", "1e25", "+1e3", "+1e6", "all nan"):
        assert not are_usual([example(regime, (6, 32), torch.float32)])
    assert are_usual([example("nan", (6, 32), torch.float32)])


def test_a_wrong_kernel_that_zeros_hide_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Linear(8, 8, bias=False).eval(), torch.zeros(4, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BestofWarning)
        bt.optimize(model, x)
    scale_layers(monkeypatch, 1.5)
    with pytest.warns(BestofWarning, match="off by .* on random values"):
        bt.optimize(model, x)


def norms_before_a_mean(channels: int, groups: int) -> nn.Module:
    """In exact numbers, the mean of each group is 0: results are rounding errors, and biases."""
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3, padding=1),
        nn.GroupNorm(groups, 6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 10),
    ).eval()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_what_is_left_of_a_norm_by_a_mean_is_no_fault(groups: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = norms_before_a_mean(1 + seed, groups)
    with torch.no_grad():
        model[4].bias.zero_()
    bt.optimize(model, torch.randn(1, 1 + seed, 6, 3))


@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2d(1), nn.AvgPool2d((1, 9))])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_mean_leaves_of_pytorchs_norm_is_no_fault(pool: nn.Module, seed: int) -> None:
    """The plan adds in another order: that alone makes the results, which are 0 in exact numbers.

    Such a plan was refused: "differs by 7.47e-09 rms where rounding explains 8.93e-14".
    """
    torch.manual_seed(seed)
    bt.optimize(nn.Sequential(nn.InstanceNorm2d(3), pool).eval(), torch.randn(1, 3, 1, 9))


@pytest.mark.parametrize("groups", [1, 6])
def test_a_wrong_layer_is_found_behind_a_norm_and_a_mean(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results are off by a thousandth."""
    torch.manual_seed(0)
    model = norms_before_a_mean(3, groups)
    results, read = bounds.results_of, Program.read

    def off(*given: Any) -> list[Any]:
        return [one * 1.001 for one in results(*given)]

    def off_in_place(self: Program, inputs: Any, after: Any, reader: Any) -> Any:
        return read(self, inputs, after, lambda outputs: reader([one * 1.001 for one in outputs]))

    monkeypatch.setattr(Program, "read", off_in_place)
    for module in (bounds, injected_errors):
        monkeypatch.setattr(module, "results_of", off)
    with pytest.raises(TorchError, match="where rounding explains"):
        bt.optimize(model, torch.randn(1, 3, 6, 3))


@pytest.mark.parametrize(("images", "compared"), [(1, [0]), (2, [0, 1]), (7, [0, 6])])
def test_no_image_is_compared_twice(images: int, compared: list[int]) -> None:
    """The copies for the comparison take twice the memory of what they compare."""
    plan = bt.optimize(nn.Conv2d(3, 8, 3).eval(), torch.randn(images, 3, 9, 9), tune=False)
    program = next(iter(plan._programs.values())).program
    binding = program.borrow()
    (step,) = [one.convolution for one in binding.steps if one.convolution is not None]
    program.give_back(binding)
    assert compared_images(step.problem, images) == compared


@pytest.mark.parametrize(
    ("got", "right", "wide", "is_right"),
    [
        (-INF, torch.finfo(torch.float32).min, torch.finfo(torch.float64).min, False),
        (INF, NAN, 1e300, False),
        (INF, NAN, INF, True),
        (2.0, NAN, 2.0, True),
        (NAN, 2.0, NAN, True),
        (NAN, 2.0, 2.0, False),
    ],
)
def test_float64_excuses_only_what_the_type_can_hold(
    got: float, right: float, wide: float, is_right: bool
) -> None:
    """A mask of the smallest number is infinite in float32 if it comes from float64."""
    others = torch.linspace(-1, 1, 7)
    program: Any = SimpleNamespace(changed=SimpleNamespace(places=()))
    found = bounds.Bounds.__new__(bounds.Bounds)
    found._program, found._magnified, found._shaken = program, 1.0, [Moved(True, Size())]
    found._run_wide = lambda: [
        torch.cat([others.double(), torch.tensor([wide], dtype=torch.float64)])
    ]
    results = [torch.cat([others, torch.tensor([one])]) for one in (got, right)]
    assert (found.complaint(results[:1], results[1:]) is None) == is_right
