"""Measure what every alternative of some convolutions costs on this processor, for `fit.py`.

    python benchmarks/cost_model/measure.py benchmarks/cost_model/cascade_lake.csv

A line of the file is one alternative of one pass: the median of five calls by one thread. The clock
is the processor time of the process, so a busy machine preempts without being counted; what other
programs take of caches and memory bandwidth remains in the times.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # before torch is imported
os.environ["BESTOF_STORE"] = "off"

from bestof.bench.convolution.alternatives import measure_conv

COLUMNS = ("notation", "layout", "pass", "alternative", "seconds", "spread")

# Layers of VGG16, ResNet, MobileNetV2 and a CIFAR network, in batches that keep a call below a
# second.
NOTATIONS = (
    "i3x224x224,k64x3x3,b1,p1",
    "i3x224x224,k64x7x7,b1,s2,p3",
    "i64x112x112,k64x3x3,b1,p1",
    "i64x56x56,k64x3x3,b2,p1",
    "i128x56x56,k128x3x3,b1,p1",
    "i128x28x28,k128x3x3,b4,p1",
    "i256x28x28,k256x3x3,b1,p1",
    "i256x14x14,k256x3x3,b4,p1",
    "i512x14x14,k512x3x3,b1,p1",
    "i512x7x7,k512x3x3,b2,p1",
    "i512x2x2,k512x3x3,b16,p1",
    "i64x56x56,k128x3x3,b2,s2,p1",
    "i128x28x28,k256x3x3,b2,s2,p1",
    "i256x14x14,k512x3x3,b2,s2,p1",
    "i64x56x56,k256x1x1,b2",
    "i256x56x56,k64x1x1,b2",
    "i512x28x28,k128x1x1,b2",
    "i1024x14x14,k256x1x1,b4",
    "i512x7x7,k2048x1x1,b2",
    "i16x64x64,k16x5x5,b4,p2",
    "i8x32x32,k8x9x9,b8,p4",
    "i1x28x28,k32x3x3,b32,p1",
    "i32x14x14,k64x5x5,b16,p2",
    "i96x56x56,k96x3x3,b2,p1,g96",
)
CHANNELS_LAST = NOTATIONS[2:14:3] + NOTATIONS[14:19:2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    cases = [(one, False) for one in NOTATIONS] + [(one, True) for one in CHANNELS_LAST]
    with options.file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for number, (notation, channels_last) in enumerate(cases, 1):
            print(f"{number}/{len(cases)} {notation}", file=sys.stderr, flush=True)
            results = measure_conv(
                notation,
                repeats=options.repeats,
                channels_last=channels_last,
                threads=1,
                clock=time.process_time,
            )
            layout = "channels_last" if channels_last else "contiguous"
            for result in results:
                for row in result.alternatives:
                    if row.seconds is not None and row.spread is not None:
                        times = f"{row.seconds:.6g}", f"{row.spread:.3g}"
                        writer.writerow((notation, layout, result.name, row.name, *times))
            stream.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
