"""The OpenMP runtimes of this process, and their parallel regions."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

_FOLDER = str(Path(torch.__file__).resolve().parent)  # as the system tells paths
_NAMES = ("libgomp", "libiomp5", "libomp", "libomp5")
_DELETED = " (deleted)"


def runtimes(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Return the files of the OpenMP runtimes that the process has loaded, PyTorch's first.

    A file that was deleted since, as by an update, is left out: its name loads no runtime, or a
    second one.
    """
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    files = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if line.count("/"))
    found = [one for one in files if _is_runtime(Path(one).name) and not one.endswith(_DELETED)]
    return sorted(found, key=lambda one: not one.startswith(_FOLDER))


def is_gcc(runtime: str) -> bool:
    """Return whether a file that `runtimes` has returned is GCC's runtime."""
    return Path(runtime).name.startswith("libgomp")


def empty_region(runtime: str, threads: int) -> Callable[[], object]:
    """Return a function that enters and leaves a parallel region of a runtime."""
    nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL) does nothing
    enter = _enter(runtime)
    return lambda: enter(nothing, None, ctypes.c_uint(threads), ctypes.c_uint(0))


def on_each_thread(function: Callable[[], object], threads: int) -> None:
    """Call `function` on each of so many threads of the calling thread's team, in any order.

    Only in the calling thread if no OpenMP runtime is loaded.
    """
    loaded = runtimes()
    if not loaded:
        function()
        return

    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: function() and None)
    _enter(loaded[0])(body, None, ctypes.c_uint(threads), ctypes.c_uint(0))


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Let the calling thread compute on so many threads meanwhile. On one, OpenMP starts no other.

    `torch.set_num_threads` would also change how many threads MKL takes, for good.
    """
    before = torch.get_num_threads()  # the first question sets the number of this thread
    set_threads = _threads_setter()
    try:
        set_threads(threads)
        yield
    finally:
        set_threads(before)


@cache
def _threads_setter() -> Callable[[int], object]:
    loaded = runtimes()  # PyTorch has loaded its own when this module was imported
    return ctypes.CDLL(loaded[0]).omp_set_num_threads if loaded else lambda _: None


def _enter(runtime: str) -> Callable[..., object]:
    # GCC's name for it. LLVM's and Intel's runtimes have it too.
    return ctypes.CDLL(runtime).GOMP_parallel


def _is_runtime(name: str) -> bool:
    # Wheels add a hash to the name, as in libgomp-1a2b3c.so.1.
    return re.split(r"[.-]", name, maxsplit=1)[0] in _NAMES
