"""Each example runs at a small size, and does what its first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

DIGITS = (
    *("digits_to_accuracy.py", "--accuracy", "0.9", "--width", "8", "--scale", "1"),
    *("--most-steps", "400"),
)
TRANSFORMER = (
    *("train_transformer.py", "--steps", "80", "--length", "4", "--numbers", "4"),
    *("--width", "32", "--layers", "1", "--batch", "64"),
)


def run(folder: Path, *arguments: str, before: tuple[str, ...] = ()) -> str:
    name, *rest = arguments
    done = subprocess.run(
        [sys.executable, *before, str(EXAMPLES / name), *rest],
        cwd=folder,
        # One thread: the networks are too small for more.
        env={**os.environ, "BESTOF_STORE": "off", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "before",
    [(), ("-m", "bestof", "run")],
    ids=["plain", "tuned"],
)
def test_the_digits_reach_their_accuracy(tmp_path: Path, before: tuple[str, ...]) -> None:
    out = run(tmp_path, *DIGITS, before=before)
    found = re.fullmatch(r"accuracy (\d\.\d+) after (\d+) steps in \d+\.\d s\n", out)
    assert found is not None, out
    assert float(found[1]) >= 0.9
    assert int(found[2]) < 400


@pytest.mark.long
def test_the_transformer_learns_the_same_with_tuning(tmp_path: Path) -> None:
    losses = []
    for before in ((), ("-m", "bestof", "run")):
        out = run(tmp_path, *TRANSFORMER, before=before)
        found = re.fullmatch(r"loss: ([\d.]+) at first, ([\d.]+) at last; [\d.]+% right\n", out)
        assert found is not None, out
        losses.append((float(found[1]), float(found[2])))
    (first, last), (tuned_first, tuned_last) = losses
    assert tuned_first == pytest.approx(first, abs=2e-3)  # three digits are printed
    assert last < 0.8 * first
    assert tuned_last == pytest.approx(last, abs=0.02)


def test_sparse_formats_are_chosen_and_solve_the_equation(tmp_path: Path) -> None:
    out = run(tmp_path, "select_sparse.py", "--points", "12", "--calls", "60")
    found = re.match(r"Poisson's equation on 12 x 12 points: residual (\S+)\n", out)
    assert found is not None, out
    assert float(found[1]) < 1e-9
    problems = re.findall(r"^  Problem\(rows=\d+, .*\): ", out, re.MULTILINE)
    assert len(problems) == 5, out
    for name, tried in (("csr", 5), ("csc", 5), ("dia", 4), ("dense", 4)):
        assert len(re.findall(rf"^[ *]+ {name} .* trials", out, re.MULTILINE)) == tried, out
    assert "reads 488 times as much as csr" in out
