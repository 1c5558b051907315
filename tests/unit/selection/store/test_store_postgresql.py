"""A store on a PostgreSQL server: its tables, its rows, passwords, and wrong places."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from stored_records import NEW, RECORDS, save_all

from bestof import BestOf
from bestof.errors import BestofWarning, StoreError
from bestof.selection.record import Record
from bestof.selection.store import postgresql_schema, postgresql_session
from bestof.selection.store.postgresql import PostgresqlStore
from bestof.selection.store.protocol import Store
from postgresql_server import GUARDED, PASSWORD, PostgresqlServer, shared

RECORD = RECORDS[0]


@pytest.fixture
def server() -> PostgresqlServer:
    return shared()


@pytest.fixture
def database(server: PostgresqlServer) -> str:
    return server.new_database()


@pytest.fixture
def url(server: PostgresqlServer, database: str) -> str:
    return server.url(database)


@pytest.fixture(autouse=True)
def _no_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))


def write(url: str, records: Sequence[Record] = RECORDS) -> None:
    """Save records through a store of their own."""
    store = PostgresqlStore(url)
    store.unite(records)
    store.close()


def read(url: str) -> list[Record]:
    store = PostgresqlStore(url)
    try:
        return store.contents()[0]
    finally:
        store.close()


# Tables


def test_reading_makes_no_tables(server: PostgresqlServer, database: str, url: str) -> None:
    assert read(url) == []
    assert server.run("SELECT 1 FROM pg_namespace WHERE nspname = 'bestof'", database) == []


def test_a_schema_that_the_owner_has_made_is_used(server: PostgresqlServer, database: str) -> None:
    server.run(f"CREATE SCHEMA bestof AUTHORIZATION {GUARDED}", database)
    url = server.url(database, GUARDED, quote(PASSWORD, safe=""))
    write(url)
    assert read(url) == sorted(RECORDS, key=lambda record: record.key)


def test_older_tables_are_migrated_with_their_records(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(url, [RECORD])
    step = ("ALTER TABLE bestof.record ADD COLUMN extra integer NOT NULL DEFAULT 7",)
    monkeypatch.setattr(postgresql_schema, "STEPS", (*postgresql_schema.STEPS, step))
    assert read(url) == [RECORD]
    write(url, [RECORD])


def test_newer_tables_are_refused_and_stay_as_they_are(
    server: PostgresqlServer, database: str, url: str
) -> None:
    write(url, [RECORD])
    server.run("UPDATE bestof.schema_version SET version = 99", database)
    with pytest.raises(StoreError, match=r"schema version 99, .* up to 1; .* use a newer bestof"):
        write(url, [NEW])
    store = PostgresqlStore(url)
    with pytest.warns(BestofWarning, match="schema version 99"):
        assert store.load(*RECORD.key) is None
    assert not save_all(store, [NEW]), "and no second warning"
    assert store.load(*NEW.key) == NEW, "kept in memory"
    with pytest.warns(BestofWarning, match="decisions are lost: 1"):
        store.close()
    assert server.run("SELECT count(*) FROM bestof.record", database) == [(1,)]


def test_a_schema_of_another_program_is_refused(
    server: PostgresqlServer, database: str, url: str
) -> None:
    server.run("CREATE SCHEMA bestof CREATE TABLE record (number integer)", database)
    with pytest.raises(StoreError, match="belongs to another program; it was not changed"):
        write(url)


def test_tables_that_were_dropped_are_made_again(
    server: PostgresqlServer, database: str, url: str
) -> None:
    store = PostgresqlStore(url)
    store.unite([RECORD])
    server.run("DROP SCHEMA bestof CASCADE", database)
    with pytest.raises(StoreError, match="does not exist; nothing was changed"):
        store.unite([NEW])
    store.unite([NEW])
    assert store.contents()[0] == [NEW]
    store.close()


def test_reads_of_one_problem_and_one_selector_use_an_index(
    server: PostgresqlServer, database: str, url: str
) -> None:
    write(url)
    plan = "SET enable_seqscan = off; EXPLAIN SELECT * FROM bestof.record WHERE {} = 'x'"
    for column, index in (("key", "record_pkey"), ("selector", "record_selector")):
        lines = server.run_last(plan.format(column), database)
        assert index in str(lines)


# Rows


@pytest.mark.parametrize(
    "damage",
    [
        "evidence = 'x'",
        "evidence = '[[1, 2, 3, 4, 5]]'",
        "evidence = '[[\"a\"]]'",
        "evidence = '{\"a\": 1}'",
        "evidence = repeat('[', 100000)",
        "host = 'h\\'",
        "decision = '\\x1'",
        "problem = 'ö'",
    ],
)
def test_a_damaged_row_is_told_and_replaced(
    server: PostgresqlServer, database: str, url: str, damage: str
) -> None:
    write(url, [RECORD, NEW])
    server.run(f"UPDATE bestof.record SET {damage} WHERE decision = 'a'", database)
    store = PostgresqlStore(url)
    with pytest.warns(BestofWarning, match="is damaged; bestof searches again"):
        assert store.load(*RECORD.key) is None
    assert store.records() == [NEW], "the others are read, and no second warning"
    assert save_all(store, [RECORD])
    assert store.load(*RECORD.key) == RECORD
    assert store.clear() == 2
    store.close()


def test_a_damaged_pin_is_told(server: PostgresqlServer, database: str, url: str) -> None:
    store = PostgresqlStore(url)
    store.pin("s", "a")
    server.run(r"UPDATE bestof.pin SET alternative = '\x1'", database)
    with pytest.warns(BestofWarning, match="the pin of s .* is damaged"):
        assert store.pinned("s", "p") is None
    store.pin("s", "b")
    assert store.pinned("s", "p") == "b"
    store.close()


def test_long_names_are_kept(url: str) -> None:
    long = Record("s" * 10_000, "ü" * 10_000, "h" * 10_000, "a" * 10_000, (), 1.0)
    write(url, [long])
    assert read(url) == [long]
    store = PostgresqlStore(url)
    assert store.load(*long.key) == long
    store.close()


# Passwords


def messages(store: Store) -> list[str]:
    """Return all that a store says when it is used in vain."""
    said = [store.url, repr(store), repr(vars(store))]
    with pytest.warns(BestofWarning) as told:
        assert store.load("s", "p", "h") is None
    assert not save_all(store, [RECORD])
    with pytest.warns(BestofWarning) as lost:
        store.close()
    said.extend(str(one.message) for one in [*lost, *told])
    return said


@pytest.mark.parametrize("given", ["in the URL", "PGPASSWORD", "~/.pgpass"])
def test_a_password_is_found(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str
) -> None:
    database = server.new_database(GUARDED)
    url = server.url(database, GUARDED)
    if given == "in the URL":
        url = server.url(database, GUARDED, quote(PASSWORD, safe=""))
    elif given == "PGPASSWORD":
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
    else:
        escaped = PASSWORD.replace("\\", r"\\").replace(":", r"\:")
        file = tmp_path / "pgpass"
        file.write_text(f"*:*:*:{GUARDED}:{escaped}\n")
        file.chmod(stat.S_IRUSR | stat.S_IWUSR)
        monkeypatch.setenv("PGPASSFILE", str(file))
    write(url, [RECORD])
    assert read(url) == [RECORD]


@pytest.mark.parametrize("place", ["user", "option"])
def test_a_wrong_password_is_told_and_never_shown(
    server: PostgresqlServer, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    caplog.set_level(logging.DEBUG)
    database, secret = server.new_database(GUARDED), "hidden%20word"
    if place == "user":
        url = server.url(database, GUARDED, secret)
    else:
        url = server.url(database, GUARDED, more=f"&password={secret}")
    said = messages(PostgresqlStore(url))
    assert "password authentication failed" in said[-1]
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        read(url)
    said.extend(traceback.format_exception(caught.type, caught.value, caught.tb))
    said.append(caplog.text)
    assert "***" in said[0]
    assert [text for text in said if "hidden" in text] == []


@pytest.mark.parametrize("wrong", ["&foo=1", "&connect_timeout=x", "&sslmode=none"])
def test_a_wrong_option_is_told_without_the_password(server: PostgresqlServer, wrong: str) -> None:
    url = server.url("postgres", GUARDED, "hidden", wrong)
    said = messages(PostgresqlStore(url))
    assert [text for text in said if "hidden" in text] == []
    with pytest.raises(StoreError, match=r"guarded:\*\*\*@") as caught:
        read(url)
    assert "hidden" not in "".join(traceback.format_exception(caught.value))


def test_a_wrong_percent_sign_in_a_password_is_told_without_it(server: PostgresqlServer) -> None:
    url = server.url("postgres", GUARDED, "hid%zzden")
    with pytest.raises(StoreError, match="cannot be understood: its options or its %-signs") as got:
        read(url)
    assert "den" not in "".join(traceback.format_exception(got.value)).replace("understood", "")


# Wrong places


def test_calls_go_on_without_the_database(server: PostgresqlServer) -> None:
    url = server.url("none_such")
    selector = BestOf("s", [("a", abs), ("b", abs)], lambda n: n, store=url)
    with pytest.warns(BestofWarning, match='database "none_such" does not exist'):
        assert selector(-1) == 1
    assert [selector(-n) for n in range(30)] == list(range(30))
    with pytest.raises(StoreError, match="does not exist; nothing was changed"):
        write(url)


def test_a_server_that_refuses_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be written: .* No such file") as caught:
        write(f"postgresql://u@/d?host={tmp_path}")
    assert "\n" not in str(caught.value)


def test_a_server_of_an_old_version_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql_session, "OLDEST_SERVER", 990000)
    with pytest.raises(StoreError, match=r"is on PostgreSQL \d+\.\d+; bestof needs 99.0 or newer"):
        write(url)


def test_without_permission_the_error_says_what_the_owner_can_do(server: PostgresqlServer) -> None:
    url = server.url(server.new_database(), GUARDED, quote(PASSWORD, safe=""))
    with pytest.raises(StoreError, match=r"permission denied for .*: CREATE SCHEMA bestof"):
        write(url)


def test_strange_characters_and_options_of_a_url(server: PostgresqlServer) -> None:
    name = 'we ird/%?@:&="ä'
    server.run(f"""CREATE DATABASE "{name.replace('"', '""')}" """)
    more = "&application_name=my%20name&options=-c%20search_path%3Dnone&connect_timeout=30"
    url = server.url(quote(name, safe=""), more=more)
    write(url, [RECORD])
    assert read(url) == [RECORD]


def test_a_wrong_setting_is_told_once_and_calls_go_on(tmp_path: Path) -> None:
    program = """
from bestof import BestOf
for name in ("one", "two"):
    selector = BestOf(name, [("a", abs), ("b", abs)], lambda n: n)
    assert [selector(-n) for n in range(5)] == list(range(5))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "BESTOF_STORE": "postgresql://u:hid@den@h/d"},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stderr.count("decisions are not kept: the URL of the PostgreSQL store") == 1
    assert "Traceback" not in done.stderr
    assert "den" not in done.stderr


# Processes


@pytest.fixture
def program(tmp_path: Path, url: str) -> list[str]:
    """A program that is started with the URL and a name, and saves 40 records of evidence."""
    file = tmp_path / "program.py"
    file.write_text("""
import sys
from bestof.selection.record import Evidence, Record
from bestof.selection.store.url import open_store

store = open_store(sys.argv[1])
for problem in range(40):
    evidence = (Evidence(sys.argv[2], "1", (1.0,)),)
    store.save(Record("s", str(problem), "h", sys.argv[2], evidence, 1.0))
    if problem % 10 == 0:
        store.load("s", str(problem), "h")
""")
    return [sys.executable, str(file), url]


def test_processes_that_write_the_same_records_lose_nothing(program: list[str], url: str) -> None:
    names = ["a", "b", "c", "d"]
    running = [subprocess.Popen([*program, name]) for name in names]
    assert [one.wait(120) for one in running] == [0] * len(names)
    found = read(url)
    assert len(found) == 40
    assert {tuple(sorted(item.alternative for item in one.evidence)) for one in found} == {
        tuple(names)
    }


def test_a_fork_shares_no_connection(tmp_path: Path, url: str) -> None:
    file = tmp_path / "forks.py"
    file.write_text("""
import os, sys, warnings
from bestof.selection.record import Record
from bestof.selection.store.url import open_store

warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
os.environ["BESTOF_STORE_WAIT"] = "60"
store = open_store(sys.argv[1])
store.save(Record("s", "parent", "h", "a", (), 1.0))
store.load("s", "parent", "h")
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        assert store.load("s", "parent", "h") is not None
        store.save(Record("s", str(number), "h", "a", (), 1.0))
        assert store.flush(60.0)
        os._exit(0)
    children.append(child)
    store.save(Record("s", f"after {number}", "h", "a", (), 1.0))
    assert store.load("s", "parent", "h") is not None
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
assert store.flush(60.0)
assert store.load("s", "parent", "h") is not None
""")
    subprocess.run([sys.executable, str(file), url], check=True, timeout=120)
    assert len(read(url)) == 7
