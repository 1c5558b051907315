"""`make results`: its commands are those of bestof, and what they print stands on the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bestof.bench.model.peers.table import PEERS
from bestof.cli import bench_model
from bestof.cli.bench_model_options import make_parser

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import results  # noqa: PLC0415  a program of that folder

    return results


@pytest.mark.parametrize("quick", [False, True])
def test_the_models_are_compared_with_every_static_choice(
    results: ModuleType, quick: bool, tmp_path: Path
) -> None:
    steps = [step for one in results.RESULTS for step in one.steps]
    words = [step.words(tmp_path, quick=quick) for step in steps]
    compared = [one for one in words if one[:2] == ["bench", "model"]]
    assert len(compared) == 4
    for one in compared:
        options = make_parser().parse_args(one[2:])
        bench_model._check_combination(make_parser(), options)
        assert options.static
        assert options.narrow == quick


def test_the_pages_tell_how_long_it_takes(results: ModuleType) -> None:
    told = results.announcement(results.RESULTS, quick=False)
    minutes = sum(one.minutes for one in results.RESULTS)
    assert minutes <= 90
    assert told.startswith(f"about {minutes} minutes on two cores: bestof-cifar ")
    for page in ("CONTRIBUTING.md", "Makefile", "docs/results/claims.md", "benchmarks/results.py"):
        text = (ROOT / page).read_text(encoding="utf-8").lower()
        assert f"about {minutes} minutes" in text, page


def test_another_command_is_measured_again(results: ModuleType, tmp_path: Path) -> None:
    output, step = tmp_path / "paddle-0.txt", results.Step("tune {folder}/a.json", "tune b.json")
    assert not results.is_measured(step, output, tmp_path, quick=False)
    output.write_text("Commit 0a1b2c3d.\n$ bestof tune a.json\nmeasured\n", encoding="utf-8")
    assert results.is_measured(step, output, tmp_path, quick=False)
    assert not results.is_measured(step, output, tmp_path, quick=True)


def test_a_failed_command_is_shown_and_tried_again(results: ModuleType, tmp_path: Path) -> None:
    wrong, right = (results.Step(one, one) for one in ("completion cmd", "completion bash"))
    both = results.Result("paddle", 1, "what it shows", (wrong, right))
    failed = results.measure(both, tmp_path, quick=True)
    assert failed == ["paddle: command 1 ended with status 2"]
    assert not results.is_measured(wrong, tmp_path / "paddle-0.txt", tmp_path, quick=True)
    assert results.is_measured(right, tmp_path / "paddle-1.txt", tmp_path, quick=True)
    page = results.page(tmp_path, quick=True)
    assert page.index("It ended with status 2.") < page.index("$ bestof completion bash")


def test_static_choices_are_measured_where_they_are_asked_for() -> None:
    static = {peer.name for peer in PEERS if peer.static}
    assert len(static) >= 5
    assert static < set(bench_model._STATIC)
    assert not static & {*bench_model._FEW, *bench_model._EVERY}


def test_a_result_stands_on_the_page_and_is_not_measured_twice(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/results.py", "--quick", "--folder", str(tmp_path)]
    shown = []
    for _ in range(2):
        done = subprocess.run(
            [*command, "theano"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    page = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "## theano" in page
    assert re.search(r"^Commit .+, \d{4}-\d\d-\d\d, .+, peak \d+ GFLOP/s\.$", page, re.MULTILINE)
    assert "swap: input gradient" in page
    assert "A trial of the commands, no result." in page
    assert "$ bestof bench conv" in shown[0]
    assert "$" not in shown[1]
    wrong = subprocess.run(
        [*command, "thaeno"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=250
    )
    assert wrong.returncode == 2
    assert "there is no result 'thaeno'" in wrong.stderr


def test_one_algorithm_computes_every_layer_that_it_can() -> None:
    program = """
import torch
from bestof.bench.model.peers.enabled import prepare_training
from bestof.bench.model.models import find_model
from bestof.bench.model.step import training_step
import bestof.torch as bt

torch.set_num_threads(1)
row = find_model("vgg16-cifar")
model, images = row.build(narrow=True), row.inputs(2, narrow=True)
prepared = prepare_training(model, training_step(model, images), 1, row="native winograd2")
for _ in range(4):
    prepared.run()
passes = [one for one in bt.summary().passes if "k" in one.problem and "3x3" in one.problem]
assert len(passes) > 20, len(passes)
assert {one.chosen for one in passes} == {"native winograd2"}, {one.chosen for one in passes}
"""
    pytest.importorskip("pytorchcv")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert "BestofWarning" not in done.stderr
