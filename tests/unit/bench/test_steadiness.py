"""The figures of benchmarks/steadiness.py, for decisions and times that are made up."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parents[3] / "benchmarks" / "steadiness.py"


@pytest.fixture(scope="module")
def steadiness() -> ModuleType:
    spec = importlib.util.spec_from_file_location("steadiness", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TIMES = {"one": {"a": 1.0, "b": 1.02, "c": 2.0}, "two": {"a": 1.0, "c": 3.0}}


def test_a_tie_is_no_flip(steadiness: ModuleType) -> None:
    found = steadiness.judged([{"one": "a"}, {"one": "b"}, {"one": "a"}], TIMES)
    assert (found["flips"], found["best"]) == (0.0, 1.0)
    assert found["regret"] == pytest.approx(3.02 / 3)


def test_other_decisions_count_by_the_times_of_reference(steadiness: ModuleType) -> None:
    runs = [{"one": "a", "two": "a"}, {"one": "c", "two": "a"}, {"one": "c", "two": "c"}]
    found = steadiness.judged(runs, TIMES)
    assert found["problems"] == 2
    assert found["flips"] == 2 / 4
    assert found["best"] == 3 / 6
    assert found["regret"] == (1 + 2 + 2 + 1 + 1 + 3) / 6


def test_decisions_without_a_time_are_left_out(steadiness: ModuleType) -> None:
    runs = [{"one": "a", "two": "d"}, {"one": "c", "two": "a", "three": "a"}]
    found = steadiness.judged(runs, TIMES)
    assert found["flips"] == 1.0
    assert found["best"] == 2 / 3
