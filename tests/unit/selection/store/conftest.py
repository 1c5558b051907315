"""Empty databases on the PostgreSQL server that tests share, and patient stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from bestof.selection.store import default, deferred, lifetime, worker
from postgresql_server import PostgresqlServer, shared


@pytest.fixture(autouse=True)
def patient_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine must not decide what is lost at the end of a store or at a fork, nor whether
    a store has let go of its connection between two lines of a test."""
    monkeypatch.setattr(worker, "IDLE_SECONDS", 60.0)
    for module in (deferred, lifetime):
        monkeypatch.setattr(module, "EXIT_SECONDS", 60.0)
    for module in (default, lifetime):
        monkeypatch.setattr(module, "FORK_SECONDS", 60.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PostgresqlServer:
    """The shared server. No password of this machine's user is found."""
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    return shared()


@pytest.fixture
def database(server: PostgresqlServer) -> str:
    return server.empty_database()


@pytest.fixture
def url(server: PostgresqlServer, database: str) -> str:
    return server.url(database)
