"""A PostgreSQL server that goes away while a store is used: no call fails, and nothing is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from stored_records import RECORDS

from bestof import BestOf
from bestof.errors import BestofWarning, StoreBusy
from bestof.selection.store import postgresql_database, postgresql_session, retry
from bestof.selection.store.postgresql import PostgresqlStore
from bestof.selection.store.record import Record
from postgresql_server import PostgresqlServer

psycopg = pytest.importorskip("psycopg")

FIRST, SECOND, THIRD = RECORDS[:3]


@pytest.fixture(scope="module")
def module_server() -> Iterator[PostgresqlServer]:
    """A server that these tests stop."""
    server = PostgresqlServer()
    yield server
    server.remove()


@pytest.fixture
def server(
    module_server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PostgresqlServer]:
    """The server, running before and after each test. Pauses between attempts are short."""
    monkeypatch.setattr(retry, "_FIRST", 0.02)
    monkeypatch.setattr(retry, "_LAST", 0.1)
    monkeypatch.setattr(postgresql_database, "_AWAY_SECONDS", 0.0)
    yield module_server
    module_server.stop(signal.SIGQUIT)
    module_server.start()


@pytest.fixture
def url(server: PostgresqlServer) -> str:
    return server.empty_url()


@pytest.fixture
def store(url: str) -> Iterator[PostgresqlStore]:
    """A store that holds the first record, and is connected."""
    made = PostgresqlStore(url)
    made.unite([FIRST])
    assert made.load(*FIRST.key) == FIRST
    yield made
    made.close()


def kept(url: str) -> list[Record]:
    other = PostgresqlStore(url)
    found = other.contents()[0]
    other.close()
    return found


def told(store: PostgresqlStore) -> list[str]:
    """Save the second record until the store warns, and return the warnings."""
    with pytest.warns(BestofWarning) as warnings:
        _save_until_told(store, warnings)
    return [str(one.message) for one in warnings]


def _save_until_told(store: PostgresqlStore, warnings: pytest.WarningsRecorder) -> None:
    store.save(SECOND)
    while not warnings.list:
        store.flush(0.05)


def test_a_restart_between_two_uses_is_not_noticed(
    server: PostgresqlServer, store: PostgresqlStore, url: str
) -> None:
    server.stop()
    server.start()
    assert store.load(*FIRST.key) == FIRST
    server.stop(signal.SIGQUIT)
    server.start()
    store.save(SECOND)
    assert store.flush(60.0)
    assert kept(url) == [FIRST, SECOND]


def test_what_is_saved_without_a_server_is_written_when_it_is_back(
    server: PostgresqlServer, store: PostgresqlStore, url: str
) -> None:
    server.stop()
    (warning,) = told(store)
    assert "cannot be written" in warning
    assert "wait in memory" in warning
    assert store.load(*SECOND.key) == SECOND
    assert store.load(*FIRST.key) is None, "unknown for now, and no second warning"
    store.save(THIRD)
    server.start()
    assert store.flush(60.0)
    assert store.load(*FIRST.key) == FIRST
    assert kept(url) == [FIRST, SECOND, THIRD]


def test_calls_go_on_while_the_server_is_stopped_and_started(
    server: PostgresqlServer, url: str
) -> None:
    store = PostgresqlStore(url)
    alternatives = [("a", abs), ("b", lambda n: n)]
    selector = BestOf("s", alternatives, lambda n: n, store=store, policy="rounds:rounds=2")

    def settle(problems: range) -> None:
        for n in problems:
            assert [selector(n) for _ in range(10)] == [n] * 10

    settle(range(20))
    server.stop()
    with pytest.warns(BestofWarning, match="cannot be"):
        settle(range(20, 40))
    server.start()
    settle(range(40, 60))
    assert store.flush(60.0)
    decisions = {str(n): selector.explain(n).decision for n in range(60)}
    assert None not in decisions.values()
    assert {record.problem: record.decision for record in kept(url)} == decisions
    store.close()


def test_the_end_of_the_process_waits_for_a_server_that_restarts(
    server: PostgresqlServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bestof.selection.store.deferred.EXIT_SECONDS", 60.0)
    store = PostgresqlStore(url)
    store.unite([FIRST])
    server.stop()
    assert "cannot be written" in told(store)[0]
    later = threading.Timer(0.3, server.start)
    later.start()
    store.close()
    later.join()
    assert kept(url) == [FIRST, SECOND]


def test_what_is_lost_at_the_end_is_told(
    server: PostgresqlServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bestof.selection.store.deferred.EXIT_SECONDS", 0.05)
    store = PostgresqlStore(url)
    store.unite([FIRST])
    server.stop()
    assert "cannot be written" in told(store)[0]
    with pytest.warns(BestofWarning, match="decisions are lost: 1"):
        store.close()


def test_a_server_that_is_killed_in_a_save_loses_nothing(
    server: PostgresqlServer, store: PostgresqlStore, url: str
) -> None:
    newer = Record(*FIRST.key, "b", (), 5.0)
    other = psycopg.connect(url)
    other.execute("SELECT * FROM bestof.record FOR UPDATE")
    store.save(newer)
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while not server.run(waits):  # the store waits for the row
        pass
    server.stop(signal.SIGQUIT)
    other.close()
    server.start()
    with suppress(BestofWarning):  # unless the store tries again only after the start
        store.flush(60.0)
    assert store.flush(60.0)
    assert kept(url) == [FIRST.absorb(newer)]


@pytest.mark.long
def test_a_server_that_hangs_is_given_up(
    server: PostgresqlServer,
    store: PostgresqlStore,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.pause()
    try:
        with monkeypatch.context() as patched:  # a running server may well be silent for so long
            patched.setattr(postgresql_session, "SILENT_SECONDS", 0.2)
            patched.setattr(postgresql_session, "CONNECT_SECONDS", 2)
            with pytest.warns(BestofWarning, match=r"server was silent|timeout expired"):
                assert store.load(*FIRST.key) is None
        store.save(SECOND)
    finally:
        server.resume()
    assert store.flush(60.0)
    assert kept(url) == [FIRST, SECOND]


def test_a_call_does_not_wait_for_a_server_that_hangs(
    server: PostgresqlServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BESTOF_STORE_WAIT")
    store = PostgresqlStore(url)
    store.unite([FIRST])
    server.pause()
    try:
        store.save(SECOND)
        with pytest.raises(StoreBusy, match="has not answered yet"):
            store.load(*FIRST.key)
    finally:
        server.resume()
    assert store.flush(60.0)
    store.close()
    assert kept(url) == [FIRST, SECOND]
