"""Kernels that run on one team of threads give the bits that they give alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from bestof import kernels
from bestof.errors import KernelError
from bestof.kernels import _native, run_steps

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

Function = Callable[..., Any]

# What the linker gives to team.cpp (add_team in native/kernels.cmake), and what needs no team.
GIVEN = {
    "GOMP_parallel",
    "GOMP_barrier",
    "GOMP_single_start",
    "GOMP_loop_nonmonotonic_dynamic_start",
    "GOMP_loop_nonmonotonic_dynamic_next",
    "GOMP_loop_end",
    "GOMP_loop_end_nowait",
    "omp_get_num_threads",
    "omp_get_thread_num",
}
ALONE = re.compile(
    r"GOMP_(atomic|critical)_|omp_(get_max_threads|set_num_threads|get_num_procs|.*_lock)"
)


@pytest.fixture(params=[1, 2, 3, 7])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number of OpenMP's threads, which may be more than there are processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def _normal(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


def _convolutions() -> dict[str, Function]:
    """Return functions of `out`, one for each algorithm of all passes of two convolutions."""
    found: dict[str, Function] = {}
    for channels, groups, size, stride in ((20, 1, 17, 1), (24, 24, 15, 2), (64, 8, 7, 1)):
        x, w = _normal(2, size, size, channels), _normal(channels, 3, 3, channels // groups)
        options = {"stride": stride, "padding": 1, "groups": groups}
        y = kernels.conv2d(x, w, **options)
        for direction, function, operands, shape in (
            ("forward", kernels.conv2d, (x, w), None),
            ("backward_input", kernels.conv2d_backward_input, (y, w), x.shape),
            ("backward_weight", kernels.conv2d_backward_weight, (y, x), w.shape),
        ):
            named = kernels.conv2d_algorithms(x.shape, w.shape, direction=direction, **options)
            for name in named:
                run = partial(function, *operands, algorithm=name, **options)
                if shape is not None:
                    run = partial(function, *operands, shape, algorithm=name, **options)
                found[f"{direction} {name} {channels}/{groups}"] = run
    return found


def _others() -> dict[str, Function]:
    a, b, q = _normal(70, 40), _normal(40, 90), _normal(2, 3, 100, 16)
    x = _normal(2, 14, 14, 20)
    return {
        **{
            f"product {name}": partial(kernels.matmul, a, b, algorithm=name)
            for name in kernels.matmul_algorithms(a.shape, b.shape)
        },
        "attention": partial(kernels.attention, q, q, q),
        "pooling": partial(kernels.pool2d, x, 3),
        "transposition": partial(kernels.transpose, x, (0, 3, 1, 2)),
        "layer norm": partial(kernels.layer_norm, a, np.ones(40, np.float32)),
    }


def _arrays(result: Any) -> list[Any]:
    return [one for one in (result if isinstance(result, tuple) else (result,)) if one is not None]


def test_each_kernel_gives_the_same_bits(threads: int) -> None:
    calls = {**_convolutions(), **_others()}
    assert len(calls) > 40
    alone = {name: _arrays(run()) for name, run in calls.items()}
    for _ in range(3):  # who takes which part differs from call to call
        found: dict[str, Any] = {}

        def note(name: str, run: Function, into: dict[str, Any] = found) -> None:
            into[name] = _arrays(run())

        run_steps([partial(note, name, run) for name, run in calls.items()])
        for name, expected in alone.items():
            assert all(map(np.array_equal, found[name], expected)), (name, threads)


def test_threads_that_have_slept_run_the_next_kernel(threads: int) -> None:
    x, w, found = _normal(2, 30, 30, 20), _normal(24, 3, 3, 20), []
    run = partial(kernels.conv2d, x, w, padding=1, algorithm="winograd4", threads=threads)
    run_steps([lambda: found.append(run()), lambda: time.sleep(0.02)] * 3)
    assert len(found) == 3
    assert all(np.array_equal(one, run()) for one in found)


def test_an_error_ends_the_steps_and_leaves_the_team_whole(threads: int) -> None:
    calls: list[int] = []

    def fail() -> None:
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            run_steps([partial(calls.append, 1), fail, partial(calls.append, 2)])
    assert calls == [1, 1, 1]
    x, w = _normal(1, 9, 9, 8), _normal(8, 3, 3, 8)
    assert np.isfinite(kernels.conv2d(x, w, threads=threads)).all()


def test_a_function_that_returns_false_ends_the_steps() -> None:
    calls: list[int] = []
    steps = [partial(calls.append, 1), lambda: False, partial(calls.append, 2), lambda: 0]
    assert run_steps(steps) == 1
    assert run_steps(steps, 2) == 4
    assert calls == [1, 2]
    assert run_steps(steps, 4) == 4
    assert run_steps(steps, 9) == 9
    with pytest.raises(KernelError, match="begin: expected 0 or more; got -1"):
        run_steps(steps, -1)


def test_threads_that_are_set_in_a_step_stay(threads: int) -> None:
    seen: list[int] = []
    run_steps([lambda: torch.set_num_threads(4), lambda: seen.append(torch.get_num_threads())])
    assert seen == [4]
    assert torch.get_num_threads() == 4
    torch.set_num_threads(threads)


def test_a_list_of_threads_for_regions_within_regions_changes_nothing() -> None:
    """`OMP_NUM_THREADS=2,1`: kernels of a team would run on one thread."""
    code = (
        "import ctypes\n"
        "import torch\n"
        "from bestof import kernels\n"
        "openmp = ctypes.CDLL(None).omp_get_max_threads\n"
        "seen = []\n"
        "kernels.run_steps([lambda: seen.append(openmp())])\n"
        "print(openmp(), *seen)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "2,1"}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["2", "2"]


def test_steps_inside_of_steps_and_no_steps() -> None:
    calls: list[int] = []
    run_steps([partial(run_steps, [partial(calls.append, 1)]), partial(calls.append, 2)])
    run_steps([])
    assert calls == [1, 2]


def test_other_than_functions_are_refused() -> None:
    with pytest.raises(TypeError):
        run_steps([1])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        run_steps(1)  # type: ignore[arg-type]


def test_steps_may_shorten_their_own_list() -> None:
    steps: list[Callable[[], object]] = []
    steps += [steps.clear, lambda: steps.append(1)]  # type: ignore[list-item,arg-type]
    run_steps(steps)
    assert steps == []


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="threads have no affinity here")
def test_threads_of_one_processor_may_use_the_others_again(threads: int) -> None:
    x, w, found = _normal(2, 30, 30, 20), _normal(24, 3, 3, 20), []
    run = partial(kernels.conv2d, x, w, padding=1, algorithm="winograd4", threads=threads)
    expected, before = run(), _affinity()
    for one in sorted(os.sched_getaffinity(0)):
        _move({thread: {one} for thread in before})
        time.sleep(0.001)  # the threads are there now, and sleep
        _move(before)
        run_steps([lambda: found.append(run())] * 30)
        assert _affinity() == before
    assert all(np.array_equal(one, expected) for one in found)


def _affinity() -> dict[int, set[int]]:
    """Return the processors that each thread of this process may use."""
    return {one: os.sched_getaffinity(one) for one in map(int, os.listdir("/proc/self/task"))}


def _move(affinity: dict[int, set[int]]) -> None:
    for thread, allowed in affinity.items():
        os.sched_setaffinity(thread, allowed)


def test_programs_may_call_from_many_threads() -> None:
    x, w = _normal(2, 30, 30, 20), _normal(24, 3, 3, 20)
    run = partial(kernels.conv2d, x, w, padding=1, algorithm="winograd4")
    expected, wrong = run(), list[bool]()

    def call() -> None:
        found: list[Any] = []
        for _ in range(20):
            run_steps([lambda: found.append(run())] * 3)
        wrong.extend(not np.array_equal(one, expected) for one in found)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    assert len(wrong) == 240
    assert not any(wrong)


def test_all_calls_of_openmp_are_known() -> None:
    """Another construct of OpenMP would wait for threads that are busy in the team: for ever."""
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    command = ["nm", "--dynamic", "--undefined-only", str(_native.__file__)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].partition("@")[0] for line in listed.splitlines() if line.strip()}
    if not any(name.startswith("GOMP_") for name in names):
        pytest.skip("another compiler than GCC has compiled the extension")
    called = {name for name in names if name.startswith(("GOMP_", "omp_"))}
    assert {name for name in called if not ALONE.match(name)} <= GIVEN
