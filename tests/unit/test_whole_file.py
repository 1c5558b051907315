"""A file that is written beside its place: whole for every reader, whoever writes and whatever
fails."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bestof.whole_file import check_replaceable, whole_file, write_whole

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="permissions and links of POSIX")


def write_in_parts(path: Path, byte: bytes, parts: int = 40) -> None:
    with whole_file(path) as out:
        for _ in range(parts):
            out.write(byte * 1000)
            out.flush()


def test_many_writers_of_one_name_leave_a_whole_file_to_every_reader(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    write_in_parts(path, b"a")
    failed: list[BaseException] = []

    def write(byte: bytes) -> None:
        try:
            for _ in range(10):
                write_in_parts(path, byte)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(b"%c" % (98 + n),)) for n in range(6)]
    for thread in threads:
        thread.start()
    reads = 0
    while any(thread.is_alive() for thread in threads):
        content = path.read_bytes()
        assert len(content) == 40_000
        assert len(set(content)) == 1, "of one writer"
        reads += 1
    assert failed == []
    assert reads
    assert [file.name for file in tmp_path.iterdir()] == ["plan"], "nothing is left beside it"


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def interrupted() -> None:
        with whole_file(path) as out:
            out.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "lone \udcff")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.json"]


@POSIX
def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "v1", tmp_path / "current"
    link.symlink_to(target)  # of a file that is not there yet
    write_whole(link, "one")
    write_whole(link, "two")
    assert link.is_symlink()
    assert target.read_text() == "two"
    assert os.listdir(tmp_path / "store") == ["v1"]


@POSIX
def test_permissions_are_those_of_the_old_file_or_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "f"
    before = os.umask(0o027)
    try:
        write_whole(path, "one")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        write_whole(path, "two")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


@POSIX
def test_a_device_and_a_pipe_are_written_directly(tmp_path: Path) -> None:
    write_whole("/dev/null", "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_replaceable(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        write_whole(pipe, "through")
        assert reader.communicate(timeout=60)[0] == b"through"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["x" * 255, "\u00fc" * 127])
def test_the_longest_names_are_written(tmp_path: Path, name: str) -> None:
    write_whole(tmp_path / name, "long")
    assert (tmp_path / name).read_text() == "long"


def test_a_place_that_cannot_be_written_is_refused_before(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none" / "f", tmp_path / ("x" * 256)):
        with pytest.raises(OSError):  # noqa: PT011 - of several kinds
            check_replaceable(place)
        with pytest.raises(OSError):  # noqa: PT011 - as above
            write_whole(place, "")
    check_replaceable(tmp_path / "new")
    assert os.listdir(tmp_path) == []


@POSIX
@pytest.mark.skipif(os.name == "posix" and os.getuid() != 0, reason="needs a second user")
def test_a_file_in_a_folder_without_permission_is_written_in_place(tmp_path: Path) -> None:
    program = """
import os, sys
folder, path = sys.argv[1:]
sys.path[:] = [entry for entry in sys.path if entry]
from bestof.whole_file import check_replaceable, write_whole
os.setgid(65534), os.setuid(65534)
os.chdir(folder)
check_replaceable("mine"), write_whole("mine", "new")
for name in ("new", "theirs"):
    for use in (check_replaceable, lambda name: write_whole(name, "bad")):
        try:
            use(name)
        except PermissionError:
            continue
        raise AssertionError(name)
"""
    folder = tmp_path / "shared"
    folder.mkdir()
    for parent in (tmp_path, *list(tmp_path.parents)[:3]):
        if parent.stat().st_uid == os.getuid() and parent != Path("/tmp"):
            parent.chmod(0o755)
    (folder / "mine").write_text("old")
    os.chown(folder / "mine", 65534, 65534)
    (folder / "theirs").write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", program, folder, "x"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "mine").read_text() == "new"
    assert (folder / "theirs").read_text() == "old"
