"""What only the start of a process can set: its allocator, how its threads wait, huge pages.

Each candidate is a set of environment variables. Those that cannot have an effect here carry the
reason.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from ctypes.util import find_library
from dataclasses import dataclass, field
from pathlib import Path

JEMALLOC_OPTIONS = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
"""Those that `python -m torch.backends.xeon.run_cpu` passes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Environment variables to try. why: the reason not to try them; empty for none."""

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


def candidates(
    threads: int,
    *,
    find: Callable[[str], str | None] = find_library,
    environment: Mapping[str, str] = os.environ,
    libc: tuple[str, str] | None = None,
    root: Path = Path("/"),
) -> list[Candidate]:
    """Return what may help ranks of so many threads.

    find: returns the file name of a library in the standard paths. libc: its name and version.
    root: the folder that contains /sys.
    """
    jemalloc = {"MALLOC_CONF": JEMALLOC_OPTIONS}
    found = [
        _library("allocator jemalloc", ("jemalloc",), jemalloc, find, environment),
        _library("allocator tcmalloc", ("tcmalloc", "tcmalloc_minimal"), {}, find, environment),
        _huge_pages(platform.libc_ver() if libc is None else libc, root),
        Candidate("threads that spin while they wait", {"OMP_WAIT_POLICY": "active"}),
        Candidate("threads that sleep while they wait", {"OMP_WAIT_POLICY": "passive"}),
        _library("Intel's OpenMP", ("iomp5",), {"KMP_BLOCKTIME": "1"}, find, environment),
    ]
    return [_checked(one, threads, environment) for one in found]


def _library(
    name: str,
    libraries: tuple[str, ...],
    variables: Mapping[str, str],
    find: Callable[[str], str | None],
    environment: Mapping[str, str],
) -> Candidate:
    file = next((file for one in libraries if (file := find(one))), None)
    if file is None:
        names = " or ".join(f"lib{one}" for one in libraries)
        return Candidate(name, why=f"there is no {names} in the system's library paths")
    before = environment.get("LD_PRELOAD")
    return Candidate(name, {"LD_PRELOAD": f"{file}:{before}" if before else file, **variables})


def _huge_pages(libc: tuple[str, str], root: Path) -> Candidate:
    name = "transparent huge pages"
    kind, version = libc
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if kind != "glibc" or numbers < (2, 35):
        return Candidate(name, why="it needs glibc 2.35 or later")
    try:
        text = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="utf-8")
    except OSError:
        text = "[never]"
    if "[madvise]" not in text:
        always = "[always]" in text
        why = "all memory has them already" if always else "the kernel does not give them"
        return Candidate(name, why=why)
    return Candidate(name, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})


def _checked(candidate: Candidate, threads: int, environment: Mapping[str, str]) -> Candidate:
    if candidate.why:
        return candidate
    waiting = "OMP_WAIT_POLICY" in candidate.variables or "KMP_BLOCKTIME" in candidate.variables
    if waiting and threads == 1:
        return Candidate(candidate.name, why="the only thread of a rank waits for no other")
    # A list of libraries can be longer. The other variables are the user's own choice.
    taken = [one for one in candidate.variables if one in environment and one != "LD_PRELOAD"]
    if taken:
        return Candidate(candidate.name, why=f"{taken[0]} is set already")
    return candidate
