"""Freed memory: page faults, which the system counts in a separate process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

# Convolution and rectifier give 80 MiB each: glibc maps and unmaps what takes more than 32, unless
# it is told to keep.
_PROGRAM = """
import ctypes, pathlib, resource
assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0  # PR_SET_THP_DISABLE: a fault is a page
import torch
import bestof.torch as bt
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Conv2d(4, 80, 1), torch.nn.ReLU()).eval()
x = torch.randn(1, 4, 512, 512)
def faults(calls=4):
    with torch.no_grad():
        for _ in range(8):
            model(x)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(calls):
            model(x)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // calls
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1])
kernel = {"accuracy": "exact"}
print(faults())
bt.enable({"kernel": kernel, "memory": {"keep_freed": False}})
print(faults())
bt.enable({"kernel": kernel})
print(faults())
before = resident()
bt.disable()
print(before - resident())
"""
_PAGES = 2 * (80 << 20) // os.sysconf("SC_PAGE_SIZE")  # of both results

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"),
    reason="the C library is no glibc",
)


def measured(environment: dict[str, str]) -> list[int]:
    """Pages that fault in a call: without tuning, tuned but for memory, tuned; and those that
    disabling hands back."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**own, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line) for line in done.stdout.split()]


def printed(program: str, *arguments: str) -> int:
    """The number that a program prints in a process of its own, without a store."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "BESTOF_STORE": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.long
def test_freed_memory_is_kept_while_enabled_and_returned_at_the_end() -> None:
    plain, left, kept, handed_back = measured({})
    assert min(plain, left) >= _PAGES
    assert kept < _PAGES / 100
    assert handed_back > 0.9 * _PAGES


@pytest.mark.long
def test_settings_in_the_environment_stay() -> None:
    plain, left, kept, handed_back = measured({"MALLOC_MMAP_THRESHOLD_": str(32 << 20)})
    assert min(plain, left, kept) >= _PAGES
    assert handed_back < 0.1 * _PAGES


# Products of every number of rows, as those of texts of changing length. Each is called often
# enough for trials.
_LENGTHS = """
import pathlib, sys
import torch
import bestof.torch as bt
torch.set_num_threads(1)
linear = torch.nn.Linear(256, 256)
if sys.argv[1] == "tuned":
    bt.enable()
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1])
@torch.no_grad()
def calls(lengths):
    for rows in lengths:
        for _ in range(8):
            linear(torch.randn(rows, 256))
calls(range(64, 72))
before = resident()
calls(range(72, 600))
print(resident() - before)
"""
# What the process may grow by, in MiB. oneDNN's kernels for a shape took 0.4; 64 shapes may have
# some. Other growth: 256 searches of 16 KiB each, packed weights (0.3), and the heap. Without a
# bound it grew by 220 to 260.
_MOST = 64 * 0.8 + 256 / 64 + 16


@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_shapes() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    grown = {how: printed(_LENGTHS, how) * page / 2**20 for how in ("plain", "tuned")}
    print(grown)
    assert grown["tuned"] - grown["plain"] < _MOST


_LARGE_LAYER = """
import sys
import torch
import bestof.torch as bt
torch.set_num_threads(1)
layer = torch.nn.Conv2d(32, 32, 3, padding=1)
x = torch.randn(1, 32, 760, 760)
if sys.argv[1] == "tuned":
    bt.enable({"memory": {"keep_freed": False}})
with torch.no_grad():
    for _ in range(8):
        layer(x)
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak)
"""
# The input or the result, in MiB. Operands above 64 MiB are not copied for the comparison.
_BUFFER = 32 * 760 * 760 * 4 / 2**20


@pytest.mark.long
def test_trials_of_a_large_layer_take_one_more_buffer_than_pytorch() -> None:
    """PyTorch's own kernel holds the input, the result and a copy of one of them.

    While an alternative is compared, the result of PyTorch's own kernel is there beside the input
    and two buffers of the alternative. With three of them, the peak was one buffer higher.
    """
    peak = {how: printed(_LARGE_LAYER, how) / 2**10 for how in ("plain", "tuned")}
    print(peak)
    assert peak["tuned"] - peak["plain"] < 1.2 * _BUFFER + 28  # 16 MiB are bestof's own imports


_LARGE_STEPS = """
import sys
import torch
import bestof.torch as bt
torch.set_num_threads(1)
layer = torch.nn.Conv2d(32, 32, 3, padding=1)
x = torch.randn(1, 32, 760, 760)
if sys.argv[1] == "tuned":
    bt.enable()
for _ in range(4):  # the first results of each alternative
    layer(x).sum().backward()
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak)
"""


@pytest.mark.long
def test_comparisons_in_training_leave_no_pieces_where_freed_memory_is_kept() -> None:
    """What is compared lies outside of the heap. Inside, they took four buffers more."""
    peak = {how: printed(_LARGE_STEPS, how) / 2**10 for how in ("plain", "tuned")}
    print(peak)
    assert peak["tuned"] - peak["plain"] < 2 * _BUFFER + 28


_LARGE_PLAN = """
import torch
import bestof.torch as bt
torch.set_num_threads(1)
def peak():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1])
# imports
bt.optimize(torch.nn.Conv2d(32, 32, 3, padding=1).eval(), torch.randn(1, 32, 8, 8), tune=False)
layer, x = torch.nn.Conv2d(32, 32, 3, padding=1).eval(), torch.randn(1, 32, 640, 640)
before = peak()
bt.optimize(layer, x, tune=False)
print(peak() - before)
"""
_VALUE = 32 * 640 * 640 * 4 / 2**20  # MiB of the input, and of the result


@pytest.mark.long
def test_a_plan_of_a_large_layer_is_made_in_the_memory_of_its_values() -> None:
    """These are both values of the plan, its result and the model's.

    Results are compared in parts: those of 16 of the 32 filters, and three times the differences of
    1 MiB. When all were compared at once, as many values more existed at the peak.
    """
    taken = printed(_LARGE_PLAN) / 2**10
    print(taken)
    assert taken < 4 * _VALUE + _VALUE / 2 + 3 * 16 + 16  # 16 for packed weights and the heap
