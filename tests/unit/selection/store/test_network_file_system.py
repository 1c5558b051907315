"""A store on a file system of several machines keeps no write-ahead log."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bestof.selection.store import network_file_system
from bestof.selection.store.network_file_system import is_shared, type_of
from bestof.selection.store.record import Pin
from bestof.selection.store.sqlite_database import SqliteDatabase


def table(folder: Path, *lines: str) -> Path:
    file = folder / "mounts"
    file.write_text("rootfs / ext4 rw 0 0\n" + "".join(f"{line} rw 0 0\n" for line in lines))
    return file


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        *((kind, True) for kind in ("nfs", "nfs4", "cifs", "lustre", "ceph", "9p", "gpfs")),
        *((kind, True) for kind in ("fuse.sshfs", "fuse.glusterfs", "fuse.unheard_of")),
        *((kind, False) for kind in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuseblk")),
    ],
)
def test_types_of_file_systems(tmp_path: Path, kind: str, shared: bool) -> None:
    mounts = table(tmp_path, f"server:/home /cluster/home {kind}")
    assert type_of("/cluster/home/ada/decisions.sqlite", mounts) == kind
    assert is_shared("/cluster/home/ada/decisions.sqlite", mounts) == shared


def test_the_innermost_and_the_last_mount_decide(tmp_path: Path) -> None:
    mounts = table(
        tmp_path,
        "server:/ /cluster nfs4",
        "/dev/sdb /cluster/local ext4",
        "server:/two\\040words /cluster/two\\040words cifs",
        "/dev/sdc /again ext4",
        "server:/ /again nfs",
    )
    assert type_of("/cluster/a", mounts) == "nfs4"
    assert type_of("/cluster/local/a", mounts) == "ext4"
    assert type_of("/cluster/locality/a", mounts) == "nfs4"
    assert type_of("/cluster/two words/a", mounts) == "cifs"
    assert type_of("/again", mounts) == "nfs"
    assert type_of("/elsewhere", mounts) == "ext4"


def test_a_link_leads_to_the_file_system_of_its_target(tmp_path: Path) -> None:
    place = tmp_path / "there"
    place.mkdir()
    link = tmp_path / "link"
    link.symlink_to(place)
    mounts = table(tmp_path, f"server:/ {place} nfs")
    assert is_shared(link / "decisions.sqlite", mounts)


def test_without_a_table_nothing_is_shared(tmp_path: Path) -> None:
    assert not is_shared("/cluster", tmp_path / "none")
    broken = tmp_path / "broken"
    broken.write_text("\nnonsense\n")
    assert not is_shared("/cluster", broken)


@pytest.mark.parametrize(("kind", "mode"), [("nfs4", "delete"), ("ext4", "wal")])
def test_the_journal_fits_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mode: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setattr(network_file_system, "MOUNTS", table(tmp_path, f"server:/ {folder} {kind}"))
    path = folder / "decisions.sqlite"
    database = SqliteDatabase(path)
    order = Pin("total", "sum", "3")
    database.pin(order)
    assert (folder / "decisions.sqlite-wal").exists() == (mode == "wal")
    database.disconnect()
    # A connection of another program sees "delete": only WAL is kept in the file itself.
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
    connection.close()
    again = SqliteDatabase(path)
    assert again.pins(None) == [order]
    again.disconnect()


def test_a_file_in_wal_mode_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "decisions.sqlite"
    local = SqliteDatabase(path)
    order = Pin("total", "sum", "3")
    local.pin(order)
    local.disconnect()
    monkeypatch.setattr(network_file_system, "MOUNTS", table(tmp_path, f"a:/ {tmp_path} nfs"))
    there = SqliteDatabase(path)
    assert there.pins(None) == [order]
    assert not (tmp_path / "decisions.sqlite-wal").exists()
    there.disconnect()
