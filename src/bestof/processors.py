"""Finds how many processors, how much memory and how many threads the process may use.

Three things limit the processors: the machine, the affinity of the process, and the quota of its
control group. In a container, one of them is not enough: 64 processors may be visible while the
quota allows two.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

with suppress(ImportError):  # Windows has no such module, and no such limits
    import resource


@dataclass(frozen=True, slots=True)
class Processors:
    """The processors on which the process may run, and its quota of processor time.

    quota: in processors; None means no limit.
    """

    allowed: frozenset[int]
    quota: float | None = None

    @property
    def usable(self) -> int:
        """The number of threads that can run at once without waiting for each other, at least 1."""
        count = len(self.allowed)
        if self.quota is not None:
            count = min(count, int(self.quota + 0.01))
        return max(1, count)


def processors(root: Path = Path("/")) -> Processors:
    """Read the limits of this process. `root` is the folder that contains /proc and /sys."""
    if hasattr(os, "sched_getaffinity"):
        allowed = frozenset(os.sched_getaffinity(0))
    else:
        allowed = frozenset(range(os.cpu_count() or 1))
    return Processors(allowed, _quota(root))


@dataclass(frozen=True, slots=True)
class Room:
    """How many threads this process can run at once, and in words what allows no more."""

    threads: int
    limit: str


def room_for_threads() -> Room:
    """Return the room of this process: of this rank, if a launcher has started several."""
    own = processors()
    allowed, machine = len(own.allowed), os.cpu_count() or 1
    if own.quota is not None and own.usable < allowed:
        limit = f"the quota of its control group allows {own.quota:g} of {machine} processors"
    else:
        limit = f"the process may run on {allowed} of the machine's {machine} processors"
    ranks = _ranks_here()
    if ranks == 1:
        return Room(own.usable, limit)
    if _is_pinned(own.allowed):
        # The affinity already is the share, but the quota is that of all ranks.
        share = Processors(own.allowed, own.quota and own.quota / ranks)
        if share.usable < own.usable:
            limit = f"{ranks} ranks share a quota of {own.quota:g} processors"
        return Room(share.usable, limit)
    part = max(1, own.usable // ranks)
    return Room(part, f"{ranks} ranks share {own.usable} processors")


def processors_of_a_rank() -> int:
    """Return this rank's share of the usable processors."""
    return room_for_threads().threads


def _is_pinned(allowed: frozenset[int]) -> bool:
    """Return whether the process may use fewer processors than the machine or container has.

    In a container, the first process has the affinity of the container.
    """
    everywhere = os.cpu_count() or 1
    with suppress(AttributeError, OSError):  # not on this system; not visible
        everywhere = min(everywhere, len(os.sched_getaffinity(1)))
    return len(allowed) < everywhere


def _ranks_here() -> int:
    """Return how many ranks share the machine, as torchrun or MPI say; 1 if neither does."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        text = os.environ.get(name, "")
        if text.isdecimal():
            return max(1, int(text))
    return 1


def is_child_of_multiprocessing() -> bool:
    """Return whether `multiprocessing` has started this process, by whatever method.

    A spawned child knows its parent only behind the import of the program's main module.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    inherits = getattr(process.current_process(), "_inheriting", False)
    return bool(inherits) or process.parent_process() is not None


def is_first_rank_here() -> bool:
    """Return whether this is the first rank on the machine, or the only process of a program."""
    # Of torchrun, of Open MPI, and of MPICH and Intel's MPI.
    names = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    return all(os.environ.get(name, "0") == "0" for name in names)


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that the process may still allocate, or None if the system does not tell."""
    found = []
    text = _text(root / "proc/meminfo") or ""
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for folder in _groups(root, "memory"):
        most = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
        used = _text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes")
        if most and used and most.isdigit() and used.isdigit():
            # Files that were read or written count as used, but make room when it is needed.
            held = max(0, int(used) - _cached_files(folder))
            found.append(max(0, int(most) - held))
    return min(found, default=None)


def room_for_tasks(root: Path = Path("/")) -> int | None:
    """Return how many processes and threads may still be started; None: no limit.

    The control groups limit them, and `ulimit -u` limits those of the user. The latter is also
    counted for root, who is held to it inside a user namespace.
    """
    found = []
    most_of_user = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most_of_user != resource.RLIM_INFINITY:
        found.append(max(0, most_of_user - _tasks_of_user(root)))
    for folder in _groups(root, "pids"):
        most, present = _text(folder / "pids.max"), _text(folder / "pids.current")
        if most and present and most.isdigit() and present.isdigit():
            found.append(max(0, int(most) - int(present)))
    return min(found, default=None)


def room_for_mappings(root: Path = Path("/")) -> int | None:
    """Return how many bytes `ulimit -v` and `-d` still let the process map; None: no limit."""
    status, found = _status(root / "proc/self/status"), []
    for limit, name in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            found.append(max(0, most - int(status.get(name, "0").split()[0]) * 1024))
    return min(found, default=None)


def _tasks_of_user(root: Path) -> int:
    """Return how many threads the processes of this user have, as far as they are visible."""
    user, found = str(os.getuid()), 0
    for file in (root / "proc").glob("[0-9]*/status"):
        status = _status(file)
        if status.get("Uid", "").split()[:1] == [user]:
            found += int(status.get("Threads", "1"))
    return found


def _status(file: Path) -> dict[str, str]:
    """Return the fields of a file such as /proc/self/status; none if the process has ended."""
    pairs = (line.partition(":") for line in (_text(file) or "").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _cached_files(folder: Path) -> int:
    """Return the bytes of cached files of a control group and of all groups in it."""
    lines = (line.split() for line in (_text(folder / "memory.stat") or "").splitlines())
    counts = {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}
    # Version 1 counts the groups inside under `total_`; version 2 always includes them.
    names = ("inactive_file", "active_file")
    return sum(counts.get(f"total_{name}", counts.get(name, 0)) for name in names)


def _quota(root: Path) -> float | None:
    found = []
    for folder in _groups(root, "cpu"):
        limit = (_text(folder / "cpu.max") or "").split()
        if not limit:  # control groups of version 1 have one file for each number
            limit = [
                _text(folder / "cpu.cfs_quota_us") or "",
                _text(folder / "cpu.cfs_period_us") or "",
            ]
        if len(limit) == 2 and all(number.isdigit() for number in limit) and int(limit[1]):
            found.append(int(limit[0]) / int(limit[1]))
    return min(found, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the process's control group and of all groups around it."""
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        # Version 1 has one folder for each controller, or for several together.
        for name in dict.fromkeys((controllers, controllers and controller)):
            top = root / "sys/fs/cgroup" / name
            folder = top / path.lstrip("/")
            # Inside a container, the path may be the host's. It does not exist there, and the top
            # folder holds the limits.
            around = (folder, *folder.parents)
            yield from (one for one in around if one == top or top in one.parents)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
