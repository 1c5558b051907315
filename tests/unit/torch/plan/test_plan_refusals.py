"""The refusals of `optimize` and its plans: one clear error, and nothing changed."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import BestofWarning, InvalidArgument, TorchError
from bestof.torch.plan.algorithms.algorithm import Bound, PlacedLayer
from bestof.torch.plan.algorithms.native import Native
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.convolution_step import selector


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    ).eval()


def planned() -> tuple[nn.Module, bt.OptimizedModel, Tensor]:
    model, x = small(), torch.randn(2, 3, 8, 8)
    return model, bt.optimize(model, x), x


def test_arguments() -> None:
    x = torch.randn(2, 3, 8, 8)
    with pytest.raises(InvalidArgument, match="accuracy"):
        bt.optimize(small(), x, accuracy="best")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="model"):
        bt.optimize(torch.relu, x)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="example_inputs"):
        bt.optimize(small(), 3)


def test_a_model_in_training_mode() -> None:
    model = small()
    model[1].train()
    with pytest.raises(TorchError, match=r"1 is in training mode; call model\.eval\(\)"):
        bt.optimize(model, torch.randn(2, 3, 8, 8))
    assert model[1].training


@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (2, 3, 9, 9), (3, 8)])
def test_an_example_that_the_model_does_not_take(shape: tuple[int, ...]) -> None:
    with pytest.raises(TorchError, match="Sequential does not run on float32"):
        bt.optimize(small(), torch.randn(shape))


def test_a_model_whose_course_depends_on_values() -> None:
    class Fickle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(TorchError, match="cannot be traced"):
        bt.optimize(Fickle().eval(), torch.ones(2))


def test_inputs_that_the_plan_does_not_take() -> None:
    _, plan, x = planned()
    with pytest.raises(TorchError, match="expected input"):
        plan(torch.randn(2, 4, 8, 8))
    with pytest.raises(TorchError, match="no backward pass"):
        plan(x.clone().requires_grad_())
    with torch.no_grad():
        plan(x.clone().requires_grad_())
    with pytest.raises(TorchError, match="runs on the CPU"):
        plan(x.to("meta"))


def test_models_that_are_not_on_the_processor_are_refused_before_their_memory_is_read() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta")).eval()
    with pytest.raises(InvalidArgument, match=r"runs on the CPU; 1\.weight .* is on meta"):
        bt.optimize(model, torch.ones(2, 4))


class Lines(logging.Handler):
    """Keeps what PyTorch logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((torch.ones(2, 3, 8, 8).double(),), "float64 .* should be the same"),
        ((torch.ones(3, 8, 8),), r"float32 \(3, 8, 8\).* cannot be multiplied"),
        ((torch.ones(2, 3, 8, 8), torch.ones(2)), "takes 2 positional arguments but 3 were given"),
        ((), "no arguments.* missing 1 required positional argument"),
    ],
)
def test_arguments_of_another_kind_get_one_line(arguments: tuple[Any, ...], expected: str) -> None:
    torch_logger, handler = logging.getLogger("torch"), Lines()
    plan = bt.optimize(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5)).eval(),
        torch.ones(2, 3, 8, 8),
    )
    torch_logger.addHandler(handler)
    try:
        with pytest.raises(TorchError, match=expected) as raised:
            plan(*arguments)
    finally:
        torch_logger.removeHandler(handler)
    message = str(raised.value)
    assert "the plan was made for float32 (2, 3, 8, 8)" in message
    assert "\n" not in message
    assert not handler.lines


@pytest.mark.parametrize(
    "change",
    [lambda p: p.half(), lambda p: p.double(), lambda p: p.to("meta"), lambda p: p.train()],
)
def test_a_plan_refuses_changes(change: Any) -> None:
    model, plan, x = planned()
    expected = plan(x)
    with pytest.raises(TorchError):
        change(plan)
    assert torch.equal(plan(x), expected)
    assert plan.eval().to("cpu").float() is plan
    assert not list(plan.parameters())
    assert model[0].weight.dtype is torch.float32


def test_parameters_that_change() -> None:
    model, plan, x = planned()
    with torch.no_grad():
        model[4].weight.mul_(2)  # shared with the plan
    with pytest.raises(TorchError, match="changed after the plan was made"):
        plan(x)
    model, plan, x = planned()
    model[1].running_mean += 1.0
    with pytest.raises(TorchError, match="changed after the plan was made"):
        plan(x[:1])  # a shape that would be planned anew
    model, plan, x = planned()
    model.double()
    with pytest.raises(TorchError, match="changed after the plan was made"):
        plan(x)
    model, plan, x = planned()
    model.train()
    plan(x)
    with pytest.raises(TorchError, match="training mode"):
        plan(x[:1])


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "foreign", "version", "pickle"])
def test_a_damaged_file(damage: str, tmp_path: Path) -> None:
    _, plan, _ = planned()
    path = tmp_path / "plan.bestof"
    plan.save(path)
    content = path.read_bytes()
    if damage == "empty":
        content = b""
    elif damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        place = content.index(b'"aten.')
        content = content[:place] + b'"atom.' + content[place + 6 :]
    elif damage == "foreign":
        file = io.BytesIO()
        torch.save({"weights": torch.ones(3)}, file)
        content = file.getvalue()
    elif damage == "version":
        content = content[:12] + (99).to_bytes(4, "little") + content[16:]
    else:
        file = io.BytesIO()
        torch.save(nn.Linear(2, 2), file)  # holds code, which must not run
        content = file.getvalue()
    path.write_bytes(content)
    with pytest.raises(TorchError, match=r"plan\.bestof"):
        bt.load(path)


def test_a_missing_file_and_shapes_that_were_not_saved(tmp_path: Path) -> None:
    _, plan, x = planned()
    with pytest.raises(TorchError, match="no file"):
        bt.load(tmp_path / "nothing")
    plan.save(tmp_path / "plan")
    loaded = bt.load(tmp_path / "plan")
    assert torch.equal(loaded(x), plan(x))
    with pytest.raises(TorchError, match=r"\(2, 3, 8, 8\)"):
        loaded(x[:1])


def test_a_wrong_algorithm_is_found_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Native.bind

    def wrong(native: Native, placed: PlacedLayer) -> Bound:
        bound = right(native, placed)

        def off_by_a_thousandth() -> None:
            bound.run()
            placed.out.mul_(1.001)

        return Bound(off_by_a_thousandth, bound.packed) if native.kernel == "direct" else bound

    monkeypatch.setattr(Native, "bind", wrong)
    monkeypatch.setenv("BESTOF_FORCE", "fused convolution=direct")
    selector.cache_clear()
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    with pytest.warns(BestofWarning, match="'direct' was disqualified: wrong result: is off by"):
        plan = bt.optimize(model, x)
    selector.cache_clear()
    with torch.no_grad():
        assert torch.allclose(plan(x), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", range(8))
def test_a_wrong_row_of_a_linear_layer_is_found(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are multiplied in blocks, and any of them may be wrong."""
    right = Native.bind

    def wrong(native: Native, placed: PlacedLayer) -> Bound:
        bound = right(native, placed)

        def off_by_a_thousandth() -> None:
            bound.run()
            placed.out[row].mul_(1.001)

        return Bound(off_by_a_thousandth, bound.packed) if native.kernel == "matvec" else bound

    monkeypatch.setattr(Native, "bind", wrong)
    monkeypatch.setenv("BESTOF_FORCE", "fused convolution=matvec")
    selector.cache_clear()
    model, x = nn.Linear(16, 5).eval(), torch.randn(8, 16)
    with pytest.warns(BestofWarning, match="'matvec' was disqualified: wrong result: is off by"):
        plan = bt.optimize(model, x)
    selector.cache_clear()
    with torch.no_grad():
        assert torch.allclose(plan(x), model(x), rtol=1e-5, atol=1e-6)


def test_a_wrong_plan_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run, read = Program.run, Program.read

    def changed(outputs: list[Any]) -> list[Any]:
        return [output * 1.001 for output in outputs]

    def wrong(self: Program, *args: Any, **kwargs: Any) -> list[Any]:
        return changed(run(self, *args, **kwargs))

    def wrong_where_it_lies(self: Program, given: Any, after_step: Any, reader: Any) -> Any:
        return read(self, given, after_step, lambda outputs: reader(changed(outputs)))

    monkeypatch.setattr(Program, "run", wrong)
    monkeypatch.setattr(Program, "read", wrong_where_it_lies)
    with pytest.raises(TorchError, match="differs from the model's"):
        bt.optimize(small(), torch.randn(2, 3, 8, 8))


def test_explain() -> None:
    _, plan, x = planned()
    for explanation in (plan.explain(x, repeats=1), plan.explain()):
        assert sum(step.share for step in explanation.steps) == pytest.approx(1.0)
        assert explanation.seconds > 0
        assert any(
            "i3x8x8,k4x3x3" in step.problem and "relu" in step.problem for step in explanation.steps
        )
        assert str(explanation).count("\n") == len(explanation.steps) + 2
