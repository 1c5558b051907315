"""One more operation is one file with a class and its rows, and one row of the table.

This test is the specification. The operation lives in a temporary file, and every consumer is asked
for it.
"""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import bestof
import bestof.torch as bt
from bestof.bench.operation import measure_operations
from bestof.errors import InvalidArgument
from bestof.profile.recording.recorder import Recorder
from bestof.torch.ops import table

SOURCE = """
from typing import Any, NamedTuple
import torch
from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.operation import Call, Operation
from bestof.torch.ops.row import Row

class Problem(NamedTuple):
    size: int
    def canonical(self) -> str:
        return f"{self.size} numbers"
    __str__ = canonical

def as_is(original, problem, x):
    return original(x)

def one_minus(original, problem, x):
    Toy.ran += 1
    return 1 - torch.erf(x)

class Toy(Operation[Problem]):
    name, operator, ran = "toy", "aten::erfc", 0
    rows = (Row("as is", as_is), Row("one minus", one_minus))

    def examples(self):
        return {"a line": (torch.linspace(-2, 2, 1001),)}

    def call(self, level, x):
        return Call(Problem(x.numel()), (x,)) if x.dtype is torch.float32 else None

    def compare(self, row, original, args, expected, got):
        apart = float((got - expected).abs().max())
        return Finding(f"differs by {apart}") if apart > 1e-6 else Finding()
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    file = tmp_path / "toy.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("toy", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "toy", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(table, "OPERATIONS", (*table.OPERATIONS, module.Toy()))
    return module.Toy


X = torch.linspace(-2, 2, 1001)


def test_it_is_chosen_in_eager_calls_and_stands_in_reports(toy: Any) -> None:
    expected = torch.erfc(X)
    bestof.use_policy("fixed:one minus")
    bt.enable()
    assert (torch.erfc(X) - expected).abs().max() <= 1e-6
    assert toy.ran > 0
    leaf = X.clone().requires_grad_()
    torch.erfc(leaf).sum().backward()
    assert leaf.grad is not None
    (found,) = [one for one in bt.summary().passes if one.name == "toy"]
    assert (found.problem, found.chosen, found.calls) == ("1001 numbers", "one minus", 2)
    # Other tests' selectors of this name may not have been collected yet.
    reported = [
        [problem["decision"] for problem in one["problems"]]
        for one in json.loads(bestof.report("json"))["selectors"]
        if one["selector"] == "toy"
    ]
    assert ["one minus"] in reported
    assert "1001 numbers" in bestof.report()
    bt.disable()
    ran = toy.ran
    torch.erfc(X)
    assert toy.ran == ran


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * torch.erfc(x)


def test_it_is_chosen_in_a_plan(toy: Any) -> None:
    bestof.use_policy("fixed:one minus")
    plan = bt.optimize(Twice().eval(), (X,))
    steps = {one.problem: one.algorithm for one in plan.explain(X).steps}
    assert steps["toy 1001 numbers"] == "one minus"
    ran = toy.ran
    # Twice an error of 1e-6, and a rounding of 4.
    assert (plan(X) - Twice()(X)).abs().max() <= 2e-6 + 2.0**-22
    assert toy.ran == ran + 1
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    assert torch.equal(bt.load(file)(X), plan(X))
    assert toy.ran == ran + 3


def test_eager_calls_and_plans_share_what_they_learn(
    toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bestof.use_policy("fixed:one minus")
    bt.optimize(Twice().eval(), (X,))
    bestof.use_policy("fixed:as is")  # of searches from now on
    bt.enable()
    torch.erfc(X)
    (found,) = [one for one in bt.summary().passes if one.name == "toy"]
    assert (found.problem, found.chosen) == ("1001 numbers", "one minus")


def test_a_wrong_row_is_found_in_a_plan(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["toy"]
    right = toy.rows[1].function
    wrong = module.Row("one minus", lambda *given: right(*given) + 0.1)
    monkeypatch.setattr(toy, "rows", (toy.rows[0], wrong))
    bestof.use_policy("fixed:one minus")
    with pytest.warns(bestof.errors.BestofWarning, match="differs by 0.1"):
        plan = bt.optimize(Twice().eval(), (X,))
    assert torch.equal(plan(X), Twice()(X))


def test_it_is_measured_and_profiled(toy: Any) -> None:
    rows = measure_operations(["toy"], rounds=1, seconds=1e-6)
    assert [(one.row, one.problem, one.wrong) for one in rows] == [
        ("as is", "1001 numbers", None),
        ("one minus", "1001 numbers", None),
    ]
    bt.enable()
    with Recorder() as recorder:
        for _ in range(8):
            torch.erfc(X)
    trials = [one.name for one in recorder.profile.marks if one.track == "trials"]
    assert any("1001 numbers" in one for one in trials)


def test_a_wrong_row_is_found(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["toy"]
    wrong = module.Row("one minus", lambda original, problem, x: original(x) + 0.1)
    monkeypatch.setattr(toy, "rows", (toy.rows[0], wrong))
    expected = torch.erfc(X)
    bestof.use_policy("fixed:one minus")
    bt.enable()
    with pytest.warns(bestof.errors.BestofWarning, match="differs by 0.1"):
        got = torch.erfc(X)
    assert torch.equal(got, expected)


def test_the_configuration_leaves_it_out(toy: Any) -> None:
    bestof.use_policy("fixed:one minus")
    bt.enable({"kernel": {"without": ["toy"]}})
    torch.erfc(X)
    assert toy.ran == 0
    with pytest.raises(
        InvalidArgument, match="there is no operation or row 'toi'; did you mean 'toy'"
    ):
        bt.enable({"kernel": {"without": ["toi"]}})
    bt.enable()
    torch.erfc(X)
    assert toy.ran > 0
