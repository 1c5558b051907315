"""A record is the same on the same commit, and tells what differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import record
from bestof import Alternative, BestOf

pytestmark = pytest.mark.timeout(1800)  # a record of a loaded machine took ten times as long

# A clock that jumps, as that of a process which waits for a processor.
LOADED = """
import random, runpy, sys, time

drawn, clock, waited = random.Random(1), time.perf_counter, 0.0

def loaded():
    global waited
    if drawn.random() < 0.05:
        waited += drawn.choice([0.001, 0.01, 0.2, 1.0])
    return clock() + waited

time.perf_counter = loaded
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.long
def test_a_record_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "BESTOF_BUDGET"}

    def run(*words: str) -> str:
        command = [sys.executable, *words, "--problems=3", "--networks=1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        return f"{done.stdout}{done.stderr}"

    made = str(tmp_path / "record.json")
    run(record.__file__, made)
    again = run("-c", LOADED, record.__file__, made, "--compare")
    assert again.endswith("lines are the same\n"), again


@pytest.mark.long
def test_a_record_is_the_same_in_another_process_and_a_difference_is_named(tmp_path: Path) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, record.__file__, *options, "--problems=1", "--networks=1"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    made = tmp_path / "record.json"
    assert run(str(made)).returncode == 0
    before = json.loads(made.read_text())
    met = {"host", "forms", "convolution forward", "product", "max pooling", "attention"}
    assert met <= before.keys()
    problem = next(iter(before["product"]))
    before["product"]["another"] = before["product"].pop(problem)
    del before["convolution forward"][next(iter(before["convolution forward"]))][0]
    made.write_text(json.dumps(before))
    again = run(str(made), "--compare")
    assert again.returncode == 1, again.stderr
    found = again.stdout.splitlines()
    assert len(found) == 3
    assert "became" in found[0]
    assert set(found[1:]) == {"product: no longer met: another", f"product: new: {problem}"}


def test_a_record_names_what_applies_and_marks_what_is_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(value: int) -> int:
        return value

    alternatives = [
        Alternative("first", answer),
        Alternative("of two and three", answer, supports=lambda value: value in (2, 3)),
        Alternative("slow", answer, unpromising=lambda value: None if value == 3 else "slow"),
    ]
    selector = BestOf("recorded", alternatives, lambda value: value, store="off")
    for value in (1, 2, 3):
        selector(value)
    monkeypatch.setattr(record, "selectors", lambda: [selector])  # those of other tests live, too
    made: record.Record = {}
    record.note(made)
    assert made["recorded"] == {
        "1": ["first", "slow (left out)"],
        "2": ["first", "of two and three", "slow (left out)"],
        "3": ["first", "of two and three", "slow"],
    }


def test_the_rest_of_many_differences_is_counted() -> None:
    before: record.Record = {"one": {str(number): ["a"] for number in range(25)}}
    found = record.differences(before, {"one": {}})
    assert len(found) == record.SHOWN + 1
    assert found[-1] == "one: no longer met: 5 more"
