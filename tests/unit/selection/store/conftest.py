"""Empty databases on the PostgreSQL server that tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from postgresql_server import PostgresqlServer, shared


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
