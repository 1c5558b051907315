"""Fit the constants of `src/bestof/torch/ops/convolution/estimate.py` to measured times.

    python benchmarks/cost_model/fit.py benchmarks/cost_model/cascade_lake.csv [--json FILE]

The file comes from `measure.py`. The estimate of an alternative is a sum of terms, each a constant
times a quantity of the problem: operations, bytes, elements. This program fits all constants at
once, by least squares of the relative error, none below zero. Their unit is the time of one
addition or multiplication at the best rate that the native GEMM reached in the file.

It prints each constant beside the one in use, how well both sets predict the times, and how often
each would leave out the alternative that was fastest.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median

import numpy
from scipy.optimize import nnls

from bestof.torch.ops.convolution.fft import spectra_elements
from bestof.torch.ops.convolution.lowered import matrix_bytes
from bestof.torch.ops.convolution.problem import ConvProblem, parse_conv

# The constants in use, by what they are multiplied with.
IN_USE = {
    "direct": 1.3,  # an operation of a kernel that multiplies everything
    "touch": 40.0,  # a byte of an operand that is read or written
    "conversion": 40.0,  # a byte of an operand that is converted between layouts
    "matrix": 90.0,  # a byte of a lowered matrix that is copied by rows
    "gathered": 170.0,  # the same, gathered element by element
    "again": 25.0,  # a byte of weights that is read again for every image
    "spectrum": 3500.0,  # an element of a spectrum
    "products": 3.4,  # a multiply-add of Winograd
    "transforms": 9.0,  # a byte of a transformed tile
    "weights": 10.0,  # a byte of transformed weights
}
CONSTANTS = tuple(IN_USE)
MARGIN = 2.25  # as in estimate.py

Terms = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured alternative: its terms, of which "dense" has no constant, and its seconds."""

    problem: ConvProblem
    direction: str
    alternative: str
    terms: Terms
    seconds: float


def read(path: Path) -> list[Sample]:
    """Return the samples of the alternatives whose estimate is a sum of terms."""
    samples = []
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            problem = parse_conv(row["notation"])._replace(threads=1)
            if row["layout"] == "channels_last":
                problem = problem._replace(
                    input_layout="channels_last", weight_layout="channels_last"
                )
            terms = terms_of(row["alternative"], row["pass"], problem)
            if terms is not None:
                one = (problem, row["pass"], row["alternative"], terms, float(row["seconds"]))
                samples.append(Sample(*one))
    return samples


def terms_of(alternative: str, direction: str, problem: ConvProblem) -> Terms | None:
    """Return what each constant is multiplied with; None if the estimate is no sum of these
    terms."""
    operands = _operand_bytes(problem)
    touched = {"touch": operands}
    converted = {} if problem.channels_last else {"conversion": operands}
    if alternative == "as is":
        return {"direct": _direct(direction, problem), **touched}
    if alternative == "channels last":
        return {"direct": _direct(direction, problem), **touched, **converted}
    if alternative == "im2row":
        matrix = {"matrix": float(matrix_bytes(problem))}
        return {"dense": _dense(problem), **matrix, **touched, **converted}
    if alternative == "im2col":
        back = {"conversion": operands} if problem.channels_last else {}
        again = problem.input_shape[0] * _weight_bytes(problem)
        gathered = {"gathered": float(matrix_bytes(problem)), "again": again}
        return {"dense": _dense(problem), **gathered, **touched, **back}
    if alternative == "fft":
        return {"spectrum": float(spectra_elements(problem)), **touched}
    if direction != "weight gradient" or problem.weight_shape[1] >= _VECTOR:
        winograd = _winograd(alternative, problem)
        return None if winograd is None else {**winograd, **touched, **converted}
    return None


_VECTOR = 16
_SIZES = {"native winograd2": 2, "native winograd4": 4}


def _winograd(alternative: str, problem: ConvProblem) -> Terms | None:
    n, k, p, q = problem.output_shape
    c = problem.weight_shape[1]
    if alternative == "native winograd3_s2":
        tiles = n * ceil(p / 3) * ceil(q / 3)
        elements, written, points = 49.0 * tiles, tiles * (49.0 * c + 16.0 * k), 49
    elif alternative in _SIZES:
        size = _SIZES[alternative]
        elements = float(n * _along(p, size) * _along(q, size))
        written, points = elements * (c + k), (size + 2) ** 2
    else:
        return None
    return {
        "products": elements * c * k * _lanes(k),
        "transforms": 4.0 * written,
        "weights": 4.0 * points * c * k,
    }


def _along(results: int, size: int) -> int:
    return results + 2 * ceil(results / size)


def _direct(direction: str, problem: ConvProblem) -> float:
    """Return the operations, idle lanes counted: vectors lie along the channels of what is
    computed."""
    backward = direction == "input gradient"
    lanes = problem.weight_shape[1] if backward else problem.weight_shape[0] // problem.groups
    return _dense(problem) * _lanes(lanes)


def _lanes(channels: int) -> float:
    return ceil(channels / _VECTOR) * _VECTOR / channels


def _dense(problem: ConvProblem) -> float:
    n, k, p, q = problem.output_shape
    _, c, r, s = problem.weight_shape
    return 2.0 * n * k * p * q * c * r * s


def _operand_bytes(problem: ConvProblem) -> float:
    n, c, h, w = problem.input_shape
    _, k, p, q = problem.output_shape
    return 4.0 * n * (c * h * w + k * p * q)


def _weight_bytes(problem: ConvProblem) -> float:
    k, c, r, s = problem.weight_shape
    return 4.0 * k * c * r * s


def predict(terms: Terms, constants: Mapping[str, float]) -> float:
    """Return the estimate: the terms times their constants; a dense operation costs 1."""
    return sum(value * constants.get(name, 1.0) for name, value in terms.items())


def unit_of(path: Path) -> float:
    """Return the seconds of one operation at the best rate that the native GEMM reached."""
    with path.open(encoding="utf-8", newline="") as stream:
        return min(
            float(row["seconds"]) / _dense(parse_conv(row["notation"]))
            for row in csv.DictReader(stream)
            if row["alternative"] == "native convgemm"
        )


def fit(samples: Sequence[Sample], unit: float) -> dict[str, float]:
    """Return the constants with the least squares of the relative error, none below zero."""
    rows = [[one.terms.get(name, 0.0) for name in CONSTANTS] for one in samples]
    known = numpy.array([one.terms.get("dense", 0.0) for one in samples])
    measured = numpy.array([one.seconds / unit for one in samples])
    # A call that is faster than its products alone would be a negative target.
    target = numpy.maximum(measured - known, 0.0) / measured
    weighted = numpy.array(rows) / measured[:, None]
    scale = numpy.linalg.norm(weighted, axis=0)
    found, _ = nnls(weighted / scale, target)
    return {name: float(value) for name, value in zip(CONSTANTS, found / scale, strict=True)}


def ratios(
    samples: Sequence[Sample], constants: Mapping[str, float], unit: float
) -> dict[str, list[float]]:
    """Return estimate over measured time, by alternative."""
    found: dict[str, list[float]] = defaultdict(list)
    for one in samples:
        found[one.alternative].append(predict(one.terms, constants) * unit / one.seconds)
    return dict(found)


def left_out(samples: Sequence[Sample], constants: Mapping[str, float]) -> tuple[int, int]:
    """Return how many of the fastest alternatives the margin leaves out, and of how many
    problems."""
    groups: dict[tuple[ConvProblem, str], list[Sample]] = defaultdict(list)
    for one in samples:
        groups[one.problem, one.direction].append(one)
    lost = 0
    for group in groups.values():
        lowest = min(predict(one.terms, constants) for one in group)
        fastest = min(group, key=lambda one: one.seconds)
        lost += predict(fastest.terms, constants) > MARGIN * lowest
    return lost, len(groups)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", type=Path, help="write the fitted constants as well")
    options = parser.parse_args()
    samples, unit = read(options.file), unit_of(options.file)
    fitted = fit(samples, unit)
    print(f"{len(samples)} times; one operation takes {unit * 1e12:.1f} ps")
    print(f"{'constant':<12} {'fitted':>10} {'in use':>10}")
    for name in CONSTANTS:
        print(f"{name:<12} {fitted[name]:>10.3g} {IN_USE[name]:>10.3g}")
    print(f"{'estimate over time, median':<28} {'fitted':>8} {'in use':>8} {'times':>6}")
    in_use = ratios(samples, IN_USE, unit)
    for name, found in ratios(samples, fitted, unit).items():
        print(f"{name:<28} {median(found):>8.2f} {median(in_use[name]):>8.2f} {len(found):>6}")
    for label, constants in (("fitted", fitted), ("in use", IN_USE)):
        lost, problems = left_out(samples, constants)
        print(f"{label}: the fastest is left out in {lost} of {problems} passes")
    if options.json is not None:
        rounded = {name: float(f"{value:.6g}") for name, value in fitted.items()}
        options.json.write_text(json.dumps(rounded, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
