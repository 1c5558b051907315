"""How many instructions does a settled call take?

    python benchmarks/instructions.py
    python benchmarks/instructions.py --python ~/before/.venv/bin/python

Prints, for each call, the instructions that valgrind counts: all of them, and those of bestof's
compiled kernels, of its shims (C++ between PyTorch or Python and a kernel), of PyTorch, and of the
rest, which is the Python interpreter. With `--python`, the same calls run with the bestof of that
environment too, and the last columns are ratios to its counts: of all instructions, and of those
outside bestof's kernels. Times of a loaded machine differ by a tenth; most of these counts differ
by less than 1 %.

Each call runs on one thread, after BESTOF_FORCE has chosen for it: "as is" is PyTorch's own kernel.
Valgrind knows no AVX-512, so kernels of AVX2 run. It takes some minutes, on x86-64.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import mmap
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

Work = Callable[[], object]

WARM = 128
"""Calls before the first counted one: all comparisons of C++ with Python have passed by then."""

CALLS = 64
"""Calls in the shorter loop. One of 64 settled calls is timed from Python, so each loop has its
share of these."""

PARTS = ("kernels", "shims", "PyTorch", "rest")
"""What the instructions are divided into, in the order of the columns."""

ORDERS = {
    "as is": {
        "convolution forward": "as is",
        "convolution input gradient": "as is",
        "convolution weight gradient": "as is",
        "convolution layer": "independent",
        "product": "as is",
        "attention": "as is",
        "max pooling": "as is",
    },
    "native": {
        "convolution forward": "native convgemm",
        "convolution input gradient": "native convgemm",
        "convolution weight gradient": "native convgemm",
        "convolution layer": "independent",
        "product": "native blocked",
        "attention": "native",
        "max pooling": "native transposition",
        "fused convolution": "convgemm",
    },
}
"""What is chosen in the two processes that count."""


_DUMP, _START, _STOP = 0, 4, 5  # the numbers of requests in callgrind.h


ORDERED = (
    *("convolution, recorded", "convolution backward", "convolution forward"),
    *("product", "attention", "max pooling"),
)
"""The calls that both processes count."""


def calls(orders: str) -> Iterator[tuple[str, Work]]:
    """Yield the calls of one process by name; while one is counted, gradients may be off."""
    from bestof import BestOf  # noqa: PLC0415 - only in the processes that count

    if orders == "as is":
        selector = BestOf("alone", [("only", _answer)], _answer, store="off")
        yield "selector", partial(selector, 1)
        group = BestOf("group", [("only", [_answer, _answer])], _answer, store="off")
        yield "stage of a group", partial(group, 0, 1)

    import torch  # noqa: PLC0415 - likewise
    from torch import nn  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    import bestof.torch as bt  # noqa: PLC0415
    from bestof.errors import InvalidArgument  # noqa: PLC0415

    torch.set_num_threads(1)
    try:
        # A thread that watches them works by the second. Under valgrind a second has few calls.
        bt.enable({"threads": {"neighbours": False}})
    except InvalidArgument:
        bt.enable()  # a version of bestof that knows no neighbours
    x = torch.ones(1, 4, 8, 8, requires_grad=True)
    weight, bias = torch.ones(4, 4, 3, 3, requires_grad=True), torch.ones(4, requires_grad=True)
    forward = partial(torch.conv2d, x, weight, bias, 1, 1)
    out = forward()
    gradients = partial(
        torch.autograd.grad, out, (x, weight, bias), torch.ones_like(out), retain_graph=True
    )
    yield "convolution, recorded", forward
    yield "convolution backward", gradients
    q = torch.ones(1, 4, 128, 128)
    with torch.no_grad():
        yield "convolution forward", forward
        yield "product", partial(torch.mm, torch.ones(16, 512), torch.ones(512, 512))
        yield "attention", partial(functional.scaled_dot_product_attention, q, q, q)
        pool = partial(functional.max_pool2d, return_indices=True)
        yield "max pooling", partial(pool, torch.ones(1, 8, 128, 129), 2)
        if orders == "native":
            layers = nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten()
            model = nn.Sequential(*layers, nn.Linear(128, 8)).eval()
            yield "plan of three layers", partial(bt.optimize(model, (x.detach(),)), x.detach())


def _answer(value: int) -> int:
    return value


def count(orders: str, number: int, only: str) -> None:
    """Make the calls under callgrind, in this process: `number` and twice as many of each.

    Each second dump of callgrind holds the instructions of a loop. Prints the names of the calls.
    """
    names = []
    for name, work in calls(orders):
        if only not in name:
            continue
        for _ in range(WARM):
            work()
        gc.collect()
        gc.disable()  # one collection takes as much as hundreds of calls
        _ask(_START)
        for times in (number, 2 * number):
            _ask(_DUMP)  # and begin at zero
            for _ in range(times):
                work()
            _ask(_DUMP)
        _ask(_STOP)
        gc.enable()
        names.append(name)
    print(json.dumps(names))


def _ask(number: int) -> None:
    """Ask callgrind something, by the instructions that the macros of its header stand for.

    Without valgrind they do nothing.
    """
    code = bytes.fromhex("4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")
    arguments = (ctypes.c_uint64 * 6)((ord("C") << 24) + (ord("T") << 16) + number)
    access = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    with mmap.mmap(-1, mmap.PAGESIZE, prot=access) as memory:
        memory.write(code)
        place = ctypes.c_char.from_buffer(memory)
        ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(ctypes.addressof(place))(arguments)
        del place  # or the memory cannot be closed


def counted(python: str, number: int, only: str) -> dict[str, Counter[str]]:
    """Return the instructions of a call by name, and then by part, with the bestof of a Python."""
    found = {}
    for orders, chosen in ORDERS.items():
        with tempfile.TemporaryDirectory() as folder:
            command = (
                "valgrind --tool=callgrind --instr-atstart=no --quiet "
                f"--callgrind-out-file={folder}/out"
            ).split()
            program = [python, __file__, "--count", orders, "--calls", str(number), "--only", only]
            environment = {
                **os.environ,
                "BESTOF_FORCE": ",".join(f"{name}={one}" for name, one in chosen.items()),
                "BESTOF_STORE": "off",
                "OMP_NUM_THREADS": "1",
                "PYTHONHASHSEED": "0",
            }
            done = subprocess.run(
                [*command, *program],
                env=environment,
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            )
            dumps = sorted(Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:]))
            parts = [instructions(path) for path in dumps]
        names = json.loads(done.stdout.splitlines()[-1])
        # Of each call: what came before, a loop, what lies between, and a loop of twice as many.
        for place, name in enumerate(names):
            once, twice = parts[4 * place + 1], parts[4 * place + 3]
            of_a_call = {part: (twice[part] - once[part]) / number for part in PARTS}
            found[f"{name}, {orders}" if name in ORDERED else name] = Counter(of_a_call)
    return found


def instructions(path: Path) -> Counter[str]:
    """Return the instructions of one dump of callgrind by the part that they belong to."""
    found: Counter[str] = Counter()
    names: dict[str, str] = {}
    part, is_call = "rest", False
    for line in path.read_text().splitlines():
        key, _, value = line.partition("=")
        if key == "ob":
            number, _, name = value.partition(" ")
            part = part_of(names.setdefault(number, name))
        elif key == "cob":
            number, _, name = value.partition(" ")
            names.setdefault(number, name)
        elif key == "calls":
            is_call = True  # the next line tells what the called function took
        elif line[:1].isdigit() or line[:1] in "+-*":
            words = line.split()
            if not is_call and len(words) == 2:
                found[part] += int(words[1])
            is_call = False
    return found


def part_of(library: str) -> str:
    """Return the part that the instructions of a library belong to."""
    name = Path(library).name
    if name.startswith("_native."):
        return "kernels"
    if name.startswith(("_shim.", "_hot_path.")):
        return "shims"
    return "PyTorch" if name.startswith(("libtorch", "libc10")) else "rest"


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def show(now: dict[str, Counter[str]], before: dict[str, Counter[str]] | None) -> None:
    """Print a row for each call, and one below it for the other environment."""
    print(f"{'instructions':34}{'all':>11}" + "".join(f"{part:>11}" for part in PARTS), end="")
    print("" if before is None else f"{'all':>9}{'all but kernels':>17}")
    for name, parts in now.items():
        print(_row(name, parts), end="")
        old = None if before is None else before.get(name)
        if old is not None:
            ratios = parts.total() / old.total(), _without(parts) / _without(old)
            print(f"{ratios[0]:9.3f}{ratios[1]:17.3f}\n{_row('  before', old)}", end="")
        print()
    print(f"\n{processor()}, one thread, counted by valgrind, kernels of AVX2")


def _row(name: str, parts: Counter[str]) -> str:
    numbers = "".join(f"{parts[part]:11,.0f}" for part in PARTS)
    return f"{name:34}{parts.total():11,.0f}{numbers}"


def _without(parts: Counter[str]) -> float:
    return parts.total() - parts["kernels"]


def main() -> None:
    """Count with each Python, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", help="of another environment, whose bestof is compared with")
    parser.add_argument("--calls", type=int, default=CALLS, help="in the shorter loop")
    parser.add_argument("--only", default="", help="the calls whose names contain this text")
    parser.add_argument("--count", choices=ORDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        count(options.count, options.calls, options.only)
        return
    now = counted(sys.executable, options.calls, options.only)
    show(now, counted(options.python, options.calls, options.only) if options.python else None)


if __name__ == "__main__":
    main()
