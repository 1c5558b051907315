"""The constants of the estimates: the script and the code compute the same from committed times."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("scipy")
pytest.importorskip("torch")

from bestof.torch.ops.convolution import estimate
from bestof.torch.ops.convolution.passes import PASSES

FOLDER = Path(__file__).parents[2] / "benchmarks" / "cost_model"
FILES = sorted(FOLDER.glob("*.csv"))


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    """The program, as a module."""
    spec = importlib.util.spec_from_file_location("cost_model_fit", FOLDER / "fit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_there_is_data() -> None:
    assert FILES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_program_predicts_what_the_code_estimates(fit: ModuleType, file: Path) -> None:
    rows = {(catalogue.direction, row.name): row for catalogue in PASSES for row in catalogue.rows}
    samples = fit.read(file)
    assert len(samples) > 300
    assert {one.alternative for one in samples} > {"as is", "im2row", "fft", "native winograd4"}
    for one in samples:
        code = rows[one.direction, one.alternative].estimate
        assert code is not None
        assert fit.predict(one.terms, fit.IN_USE) == pytest.approx(code(one.problem), rel=1e-12)
    assert fit.MARGIN == estimate.MARGIN


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_fit_is_reproduced_from_its_data(fit: ModuleType, file: Path) -> None:
    committed = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    fitted = fit.fit(fit.read(file), fit.unit_of(file))
    assert fitted == pytest.approx(committed, rel=1e-4)
    assert list(committed) == list(fit.CONSTANTS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_constants_in_use_exclude_no_fastest_alternative(fit: ModuleType, file: Path) -> None:
    lost, problems = fit.left_out(fit.read(file), fit.IN_USE)
    assert (lost, problems > 80) == (0, True)


def test_the_fit_finds_the_constants_that_made_the_times(fit: ModuleType) -> None:
    made = {name: 1.0 + number for number, name in enumerate(fit.CONSTANTS)}
    unit = 3e-12
    samples = [
        fit.Sample(
            one.problem,
            one.direction,
            one.alternative,
            one.terms,
            unit * fit.predict(one.terms, made),
        )
        for one in fit.read(FILES[0])
    ]
    assert fit.fit(samples, unit) == pytest.approx(made, rel=1e-6)
