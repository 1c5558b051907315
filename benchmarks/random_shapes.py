"""Does the memory of a process stay, whatever shapes come? A year of serving, shortened.

    python benchmarks/random_shapes.py                          with enable
    python benchmarks/random_shapes.py --plain --calls 20000    PyTorch alone
    python benchmarks/random_shapes.py --preload /usr/lib/x86_64-linux-gnu/libjemalloc.so.2

By default there are 100,000 calls of each kind. Each call draws its shape: texts of 1 to 512 tokens
for a small encoder, images of 8 to 96 pixels a side for a small network of convolutions, in
inference and in training steps. The process of each kind prints its resident memory while it runs,
and how much of it glibc's malloc has given out: the rest are programs, Python's own blocks, and
freed pieces between others. With `--preload`, another malloc takes its place, and this number tells
nothing. The reach: at most 2 % more resident memory at the end than after the first 5,000 calls.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from time import perf_counter

KINDS = ("encoder inference", "encoder training", "images inference", "images training")
FIRST, REACH = 5_000, 0.02
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _MallocNumbers(ctypes.Structure):
    """What glibc's mallinfo2 returns; see its malloc.h."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all")
    parser.add_argument("--plain", action="store_true", help="without bestof")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--preload", metavar="FILE", help="a library with another malloc")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        run(options.kind[0], options)
        return
    for kind in options.kind or KINDS:
        command = [sys.executable, __file__, "--inside", "--kind", kind]
        command += ["--calls", str(options.calls), "--threads", str(options.threads)]
        command += ["--plain"] * options.plain
        environment = os.environ | {"BESTOF_STORE": "off"}
        if options.preload:
            environment["LD_PRELOAD"] = str(Path(options.preload).resolve(strict=True))
        subprocess.run(command, env=environment, check=True)


def run(kind: str, options: argparse.Namespace) -> None:
    import torch  # noqa: PLC0415 - not in the process that starts the others
    from torch import nn  # noqa: PLC0415 - as above

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    draw = random.Random(0)
    encoder, training = kind.startswith("encoder"), kind.endswith("training")
    if encoder:
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    else:
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.GELU(), nn.Conv2d(16, 16, 3, padding=1)
        )
    model.train(training)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    if not options.plain:
        import bestof.torch  # noqa: PLC0415 - not with --plain

        bestof.torch.enable()

    def call() -> None:
        if encoder:
            x = torch.randn(draw.randint(1, 2), draw.randint(1, 512), 64)
        else:
            x = torch.randn(draw.randint(1, 2), 3, draw.randint(8, 96), draw.randint(8, 96))
        if not training:
            with torch.no_grad():
                model(x)
            return
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    began, after_first = perf_counter(), 0.0
    for count in range(1, options.calls + 1):
        call()
        if count % FIRST == 0 or count == options.calls:
            gc.collect()
            now = resident()
            after_first = after_first or now
            print(
                f"{kind}: {count:7} calls  {now:7.1f} MiB  given out {given_out():7.1f} MiB  "
                f"{perf_counter() - began:6.0f} s",
                flush=True,
            )
    growth = now / after_first - 1
    met = "met" if growth <= REACH else "missed"
    record = {"kind": kind, "calls": options.calls, "growth": growth, "reach": REACH}
    print(f"{kind}: {growth:+.1%} since {FIRST} calls; reach {REACH:.0%}: {met}")
    print(json.dumps(record), flush=True)


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def given_out() -> float:
    """Return the memory that malloc has given out in the first arena, and mapped singly, in MiB."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _MallocNumbers
    found = ask()
    return float(found.uordblks + found.hblkhd) / 2**20


if __name__ == "__main__":
    main()
