"""Cores and splits, from fake folders of /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from bestof.errors import InvalidArgument
from bestof.processors import Processors, processors
from bestof.scale.cores import Cores, cores, parse_processors, text_of
from bestof.scale.split import parse_pins, placed, splits


def machine(root: Path, nodes: list[str], siblings: dict[int, str] | None = None) -> Path:
    for number, held in enumerate(nodes):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(held + "\n")
    for number, both in (siblings or {}).items():
        folder = root / f"sys/devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(both + "\n")
    return root


def test_hyper_threads_are_left_out_and_nodes_kept_apart(tmp_path: Path) -> None:
    pairs = {n: f"{n % 4},{n % 4 + 4}" for n in range(8)}
    root = machine(tmp_path, ["0-1,4-5", "2-3,6-7", ""], pairs)
    assert cores(Processors(frozenset(range(8))), root) == Cores(((0, 1), (2, 3)), 4)
    # The affinity holds the second thread of core 0 only.
    assert cores(Processors(frozenset({3, 4, 7})), root) == Cores(((4,), (3,)), 2)


@pytest.mark.parametrize(
    "files",
    [
        {"cpu.max": "200000 100000"},
        {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
    ],
    ids=["version 2", "version 1"],
)
def test_the_quota_bounds_the_threads_of_all_ranks(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n" if "cpu.max" in files else "3:cpu:/\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    quota = processors(tmp_path).quota
    found = cores(Processors(frozenset(range(8)), quota), tmp_path)  # no folders of nodes
    assert found == Cores((tuple(range(8)),), 2)
    assert {one.name for one in splits(found, 8)} == {"1x1", "2x1", "1x2"}


def test_no_rank_crosses_nodes_and_no_processor_is_shared() -> None:
    found = splits(Cores((tuple(range(6)), tuple(range(6, 12))), 12), 96)
    names = {one.name for one in found}
    assert {"12x1", "1x6", "2x6", "6x2", "4x2", "2x4"} <= names
    assert "1x12" not in names
    for one in found:
        assert one.batch == 96 // len(one.ranks)
        used = [processor for rank in one.ranks for processor in rank]
        assert len(used) == len(set(used)) <= 12
        assert all(len({processor // 6 for processor in rank}) == 1 for rank in one.ranks)
        assert parse_pins(one.pins()) == one.ranks


def test_ranks_use_all_nodes_and_only_numbers_that_divide_the_batch() -> None:
    two = Cores(((0, 1, 2), (3, 4, 5)), 6)
    assert placed(two, 2, 1) == ((0,), (3,))
    assert placed(two, 2, 3) == ((0, 1, 2), (3, 4, 5))
    assert placed(Cores(((0,), (1, 2, 3)), 4), 3, 1) == ((0,), (1,), (2,))
    assert {len(one.ranks) for one in splits(two, 10)} == {1, 2}
    assert all(one.batch is None for one in splits(two, None))


def test_processors_are_written_as_the_kernel_writes_them() -> None:
    assert text_of((0, 1, 2, 8, 10, 11)) == "0-2,8,10-11"
    assert parse_processors("0-2,8,10-11") == (0, 1, 2, 8, 10, 11)
    for wrong in ("", "a", "3-1", "1,,2", "-1"):
        with pytest.raises(InvalidArgument, match="expected processors such as 0-3,8"):
            parse_processors(wrong)
