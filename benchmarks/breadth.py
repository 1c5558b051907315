"""What does `enable` gain beyond 2-D convolutions? All tables, one below the other.

Training steps of networks of 1-D, transposed and 3-D convolutions, training steps under autocast,
and every row of every operation of `enable` and of plans, on examples of its calls. Each table
names the processor.

    python benchmarks/breadth.py --threads 2
    python benchmarks/breadth.py --rounds 4 --settling 60 --cpu-time
"""

from __future__ import annotations

import argparse
import sys

import autocast
import other_convolutions
import torch

from bestof.cli import bench_operation


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    known, steps = parser.parse_known_args()  # the others are options of training steps
    threads = ["--threads", str(known.threads)]
    other_convolutions.main([*threads, *steps])
    autocast.main([*threads, *steps])
    torch.set_num_threads(known.threads)
    sys.stdout.flush()
    bench_operation.call([])


if __name__ == "__main__":
    main()
