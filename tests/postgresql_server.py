"""A PostgreSQL server for tests: its own folder, a Unix socket in it, and no port.

`shared()` starts one on first use, and every test takes a database of its own on it.
`tests/conftest.py` stops it at the end. A test that stops its server makes a `PostgresqlServer`.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

START_SECONDS = 60.0
OWNER = "bestof"  # the superuser; it needs no password
GUARDED = "guarded"  # a role that needs the password
PASSWORD = "s3cret/@:?x"

_NUMBERS = count()
_SHARED: list[PostgresqlServer] = []


def shared() -> PostgresqlServer:
    """Return the server that all tests share. Skips the test if there is no PostgreSQL."""
    if not _SHARED:
        _SHARED.append(PostgresqlServer())
        atexit.register(stop_shared)
    return _SHARED[0]


def stop_shared() -> None:
    """Stop the shared server, if it was started."""
    while _SHARED:
        _SHARED.pop().remove()


def programs() -> Path | None:
    """Return the folder of `initdb` and `postgres`, the newest version first, or None."""
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    folders = sorted(debian, key=lambda folder: int(folder.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    if on_path is not None:
        folders.append(Path(on_path).resolve().parent)
    both = ("initdb", "postgres")
    return next((f for f in folders if all((f / name).exists() for name in both)), None)


class PostgresqlServer:
    """A server that runs until `stop` or `remove`. Its data outlive `stop`."""

    def __init__(self) -> None:
        pytest.importorskip("psycopg")
        found = programs()
        if found is None:
            pytest.skip("there is no PostgreSQL server: Debian's package 'postgresql' has one")
        self._programs = found
        self._user = _user()
        # a short path, because the name of a socket has at most 107 letters
        self._folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
        self._emptied: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        try:
            self._make()
            self.start()
            self.run(f"CREATE ROLE {GUARDED} LOGIN PASSWORD '{PASSWORD}'")
        except BaseException:
            self.remove()
            raise

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        data = str(self._folder / "data")
        # Not without synchronous commits: SIGQUIT would lose them.
        fast = ("-c", "fsync=off", "-c", "full_page_writes=off")
        small = ("-c", "shared_buffers=16MB", "-c", "autovacuum=off", "-c", "max_connections=40")
        place = ("-c", "listen_addresses=", "-k", str(self._folder))
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", data, *place, *fast, *small],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._as_user(),
            )
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                log_text = (self._folder / "log").read_text(errors="replace")
                raise RuntimeError(f"the PostgreSQL server does not start: {log_text[-2000:]}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT ends its connections, SIGQUIT ends it at once."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(START_SECONDS)

    def pause(self) -> None:
        """Stop every process of the server where it stands. It answers nothing."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the processes run again."""
        self._signal_all(signal.SIGCONT)

    def remove(self) -> None:
        """Stop the server, and remove its data."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str, user: str = OWNER, password: str = "", more: str = "") -> str:
        """Return the URL of a database. `password` and `more` options are taken as they are."""
        colon = ":" if password else ""
        return f"postgresql://{user}{colon}{password}@/{database}?host={self._folder}{more}"

    def new_database(self, owner: str = OWNER) -> str:
        """Make an empty database, and return its name."""
        name = f"d{next(_NUMBERS)}"
        self.run(f"CREATE DATABASE {name} OWNER {owner} TEMPLATE template0")
        return name

    def empty_database(self) -> str:
        """Return the name of a database without a store. The next call empties the same one.

        This takes a tenth of the time of a new database.
        """
        if self._emptied is None:
            self._emptied = self.new_database()
        else:
            self.run("DROP SCHEMA IF EXISTS bestof CASCADE", self._emptied)
        return self._emptied

    def empty_url(self) -> str:
        """Return the URL of `empty_database`."""
        return self.url(self.empty_database())

    def run(self, query: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as the superuser, and return its rows."""
        import psycopg  # noqa: PLC0415 - optional

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def run_last(self, queries: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run several statements in one transaction, and return the rows of the last one."""
        import psycopg  # noqa: PLC0415 - optional

        with psycopg.connect(self.url(database)) as connection:
            cursor = connection.execute(queries.encode())
            while cursor.nextset():
                pass
            return cursor.fetchall()

    def _make(self) -> None:
        data = self._folder / "data"
        done = subprocess.run(
            [
                *(str(self._programs / "initdb"), "-D", str(data), "-U", OWNER, "-A", "trust"),
                *("-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            ],
            check=False,
            capture_output=True,
            text=True,
            cwd=self._folder,
            timeout=START_SECONDS,
            **self._as_user(),
        )
        if done.returncode != 0:
            pytest.skip(f"initdb failed: {done.stderr.strip()[-500:]}")
        guard = f"local all {GUARDED} scram-sha-256\nlocal all all trust\n"
        (data / "pg_hba.conf").write_text(guard)

    def _answers(self) -> bool:
        import psycopg  # noqa: PLC0415 - optional

        try:
            self.run("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _signal_all(self, which: signal.Signals) -> None:
        assert self._process is not None
        main = self._process.pid
        os.kill(main, which)  # first, so that it starts no more
        for number in _children(main):
            os.kill(number, which)

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


def _children(parent: int) -> list[int]:
    """Return the processes that a process has started and that have not ended."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = file.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if after_name[0] != "Z" and int(after_name[1]) == parent:
            found.append(int(file.parent.name))
    return found


def _user() -> pwd.struct_passwd | None:
    """Return the user for the server, which refuses to run as root; None stands for this one."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody'")
