"""Sweeps libraries' kernels and plans of random models; exits with 1 if any crashes or is wrong.

python tests/sweep/run.py --shapes 4000 --operation convolution
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import sweep

OPERATIONS = ("convolution", "layer", "product", "pooling", "model")


def main() -> int:
    """Run the sweeps that the options name, and print what they find."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=4000, help="problems of each operation")
    parser.add_argument("--first", type=int, default=0, help="the number of the first problem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operation", choices=OPERATIONS, action="append")
    options = parser.parse_args()
    bad = False
    for operation in options.operation or OPERATIONS:
        begin = time.perf_counter()
        last = options.first + options.shapes
        found = sweep.sweep(operation, options.first, last, options.seed)
        cases = ", ".join(f"{count} {name}" for name, count in sorted(found.cases.items()))
        seconds = time.perf_counter() - begin
        print(f"{operation}: {found.shapes} problems, {seconds:.0f} s, cases: {cases}")
        for failure in found.failures:
            print(f"  {failure}")
        print(f"{operation}: {len(found.failures)} failures", flush=True)
        bad = bad or bool(found.failures)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
