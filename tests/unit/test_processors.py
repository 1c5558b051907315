"""Affinity, quota and memory, read from fake folders /proc and /sys."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from bestof import processors as module
from bestof.processors import (
    Processors,
    Room,
    available_memory,
    processors,
    processors_of_a_rank,
    room_for_mappings,
    room_for_tasks,
    room_for_threads,
)


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_tightest_of_affinity_and_quota_holds() -> None:
    eight = frozenset(range(8))
    assert Processors(eight).usable == 8
    assert Processors(eight, 2.0).usable == 2
    assert Processors(eight, 2.5).usable == 2
    assert Processors(eight, 0.5).usable == 1
    assert Processors(frozenset({3}), 4.0).usable == 1


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
                "sys/fs/cgroup/cpu.max": "900000 100000",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/1\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            2.0,
        ),
        (  # a group inside of a group with the tighter quota, version 1
            {
                "proc/self/cgroup": "7:cpu:/pod/job\n0::/pod/job\n",
                "sys/fs/cgroup/cpu/pod/job/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu/pod/job/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "50000",
            },
            1.0,
        ),
        (  # a container that sees the host's path, and its own group at the top
            {
                "proc/self/cgroup": "0::/../../kubepods/1\n",
                "sys/fs/cgroup/cpu.max": "200000 100000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "broken", "sys/fs/cgroup/cpu.max": "x y"}, None),
    ],
)
def test_the_quota_of_all_groups_around_is_read(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    assert processors(written(tmp_path, files)).quota == quota


def test_the_affinity_is_that_of_the_process(tmp_path: Path) -> None:
    assert processors(tmp_path).allowed == os.sched_getaffinity(0)


def test_memory_is_the_tightest_of_machine_and_group(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
    machine = {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable:   1000 kB\n"}
    assert available_memory(written(tmp_path, machine)) == 1_024_000
    group = {
        "proc/self/cgroup": "0::/a\n",
        "sys/fs/cgroup/a/memory.max": "900000",
        "sys/fs/cgroup/a/memory.current": "400000",
    }
    assert available_memory(written(tmp_path, group)) == 500_000


@pytest.mark.parametrize(
    ("files", "free"),
    [
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": "900000",
                "sys/fs/cgroup/a/memory.current": "890000",
                "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 500000\nactive_file 90000\n",
            },
            600_000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/a\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "900000",
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "890000",
                "sys/fs/cgroup/memory/a/memory.stat": "inactive_file 7\nactive_file 7\n"
                "total_inactive_file 500000\ntotal_active_file 90000\nbroken\n",
            },
            600_000,
        ),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": "900000",
                "sys/fs/cgroup/a/memory.current": "400000",
                "sys/fs/cgroup/a/memory.stat": "inactive_file 500000\n",
            },
            900_000,
        ),
    ],
)
def test_cached_files_are_available_memory(
    tmp_path: Path, files: dict[str, str], free: int
) -> None:
    assert available_memory(written(tmp_path, files)) == free


def test_ranks_share_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    allowed = frozenset(range(8))
    monkeypatch.setattr(module, "processors", lambda: Processors(allowed))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert processors_of_a_rank() == 8
    for ranks, share in (("4", 2), ("3", 2), ("100", 1), ("no number", 8)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert processors_of_a_rank() == share
    # A rank that was pinned to two processors has them for itself.
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(module, "processors", lambda: Processors(frozenset({4, 5})))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: allowed)
    assert processors_of_a_rank() == 2
    # The quota of its control group is that of all four ranks.
    monkeypatch.setattr(module, "processors", lambda: Processors(frozenset({4, 5}), 4.0))
    assert room_for_threads() == Room(1, "4 ranks share a quota of 4 processors")
    monkeypatch.setattr(module, "processors", lambda: Processors(frozenset({4, 5}), 8.0))
    assert processors_of_a_rank() == 2
    # Ranks that are not pinned share what the container has.
    four = frozenset(range(4))
    monkeypatch.setattr(module, "processors", lambda: Processors(four))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: four)
    assert processors_of_a_rank() == 1


def test_the_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)

    def room(limits: Processors) -> Room:
        monkeypatch.setattr(module, "processors", lambda: limits)
        return room_for_threads()

    eight = frozenset(range(8))
    quota = "the quota of its control group allows 2.5 of 8 processors"
    assert room(Processors(eight, 2.5)) == Room(2, quota)
    affinity = "the process may run on 3 of the machine's 8 processors"
    assert room(Processors(frozenset({1, 2, 3}), 4.0)) == Room(3, affinity)
    assert room(Processors(frozenset({1, 2, 3}))) == Room(3, affinity)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    assert room(Processors(eight, 4.0)) == Room(2, "2 ranks share 4 processors")


def test_the_room_for_threads_of_all_groups_around_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda limit: unlimited)
    assert room_for_tasks(tmp_path) is None
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/pids.max": "max",
        "sys/fs/cgroup/a/b/pids.current": "7",
        "sys/fs/cgroup/a/pids.max": "100",
        "sys/fs/cgroup/a/pids.current": "60",
    }
    assert room_for_tasks(written(tmp_path, files)) == 40


def test_the_limits_of_the_user_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = {
        resource.RLIMIT_NPROC: 100,
        resource.RLIMIT_AS: 9 << 20,
        resource.RLIMIT_DATA: 7 << 20,
    }
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (most[limit], most[limit]))
    user, other = os.getuid(), os.getuid() + 1
    files = {
        "proc/self/status": "VmSize:\t 4096 kB\nVmData:\t 3072 kB\n",
        "proc/1/status": f"Name:\tinit\nUid:\t{other}\t{other}\t{other}\t{other}\nThreads:\t1\n",
        "proc/20/status": f"Name:\ta: b\nUid:\t{user}\t{other}\t{other}\t{other}\nThreads:\t30\n",
        "proc/21/status": f"Uid:\t{user}\t{user}\t{user}\t{user}\nThreads:\t8\n",
    }
    root = written(tmp_path, files)
    assert room_for_tasks(root) == 62
    assert room_for_mappings(root) == 4 << 20
    most[resource.RLIMIT_DATA] = resource.RLIM_INFINITY
    assert room_for_mappings(root) == 5 << 20
