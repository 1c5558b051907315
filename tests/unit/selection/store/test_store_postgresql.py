"""A store on a PostgreSQL server: its tables and rows, and processes that share it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from postgresql_stores import read, write
from stored_records import NEW, RECORDS, save_all

from bestof.errors import BestofWarning, StoreError
from bestof.selection.store import postgresql_schema
from bestof.selection.store.postgresql import PostgresqlStore
from bestof.selection.store.postgresql_database import PostgresqlDatabase
from bestof.selection.store.postgresql_session import Session
from bestof.selection.store.postgresql_url import parse_server_url
from bestof.selection.store.record import Evidence, Pin, Record
from postgresql_server import GUARDED, PASSWORD, PostgresqlServer

RECORD = RECORDS[0]


# Tables


def test_reading_makes_no_tables(server: PostgresqlServer, database: str, url: str) -> None:
    assert read(url) == []
    assert server.run("SELECT 1 FROM pg_namespace WHERE nspname = 'bestof'", database) == []


def test_a_schema_that_the_owner_has_made_is_used(server: PostgresqlServer, database: str) -> None:
    server.run(f"CREATE SCHEMA bestof AUTHORIZATION {GUARDED}", database)
    url = server.url(database, GUARDED, quote(PASSWORD, safe=""))
    write(url)
    assert read(url) == sorted(RECORDS, key=lambda record: record.key)


@pytest.mark.parametrize("first", ["a read", "a write"])
def test_older_tables_are_migrated_with_their_records(
    server: PostgresqlServer,
    database: str,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
) -> None:
    steps = postgresql_schema.STEPS
    monkeypatch.setattr(postgresql_schema, "STEPS", steps[:1])
    write(url, [RECORD])
    step = ("ALTER TABLE bestof.record ADD COLUMN extra integer NOT NULL DEFAULT 7",)
    monkeypatch.setattr(postgresql_schema, "STEPS", (*steps, step))
    if first == "a read":
        assert read(url) == [RECORD]
    else:
        write(url, [RECORD])
    assert server.run("SELECT extra FROM bestof.record", database) == [(7,)]
    assert server.run("SELECT version FROM bestof.schema_version", database) == [(len(steps) + 1,)]
    assert read(url) == [RECORD]


def test_newer_tables_are_refused_and_stay_as_they_are(
    server: PostgresqlServer, database: str, url: str
) -> None:
    write(url, [RECORD])
    server.run("UPDATE bestof.schema_version SET version = 99", database)
    with pytest.raises(StoreError, match=r"schema version 99, .* up to \d+; .* use a newer bestof"):
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
    for column, index in (
        ("key", "record_pkey"),
        ("selector", "record_selector"),
        ("problem", "record_problem"),
    ):
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
        *(
            f'evidence = \'[["a", "1", [{number}], null, []]]\''
            for number in ("9" * 400, "9" * 5000, "1e400", "NaN", "-Infinity", "-1", "true", '"1"')
        ),
        'evidence = \'[["a", "1", [1], 7, []]]\'',
        'evidence = \'[["a", "1", [1], null, [["b"]]]]\'',
        'evidence = \'[["a", "1", [1], null, {"b": "c"}]]\'',
        "updated = 'NaN'",
        "updated = '-Infinity'",
        "problem = '\\d'",
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


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_any_encoding_of_the_database_holds_all_text(
    server: PostgresqlServer, encoding: str
) -> None:
    name = f"in_{encoding.lower()}"
    server.run(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
    strange = Record("ü€\U0001f600", "\\n\n\0'\"", "\udcff", "日本", (), 1.0)
    store = PostgresqlStore(server.url(name))
    store.unite([strange], [Pin("ü", "€")])
    assert store.contents() == ([strange], [Pin("ü", "€")])
    store.close()


def test_many_records_are_merged_in_parts(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql_schema, "_MOST_ROWS", 7)
    write(url, RECORDS[:30])
    write(url, RECORDS[20:])
    assert read(url) == sorted(RECORDS, key=lambda record: record.key)


@pytest.mark.parametrize("damage", ["DELETE FROM", "UPDATE", "INSERT INTO"])
def test_a_damaged_version_is_refused(
    server: PostgresqlServer, database: str, url: str, damage: str
) -> None:
    write(url, [RECORD])
    rest = {"DELETE FROM": "", "UPDATE": "SET version = -1", "INSERT INTO": "VALUES (1)"}[damage]
    server.run(f"{damage} bestof.schema_version {rest}", database)
    with pytest.raises(StoreError, match=r"is damaged: .* must hold one row"):
        write(url, [NEW])
    with pytest.raises(StoreError, match=r"is damaged: .* must hold one row"):
        read(url)


# Processes


@pytest.fixture
def program(tmp_path: Path, url: str) -> list[str]:
    """A program that is started with the URL and a name, and saves 40 records of evidence."""
    file = tmp_path / "program.py"
    file.write_text("""
import sys
from bestof.selection.store.record import Evidence, Record
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
    assert [one.wait(250) for one in running] == [0] * len(names)
    found = read(url)
    assert len(found) == 40
    assert {tuple(sorted(item.alternative for item in one.evidence)) for one in found} == {
        tuple(names)
    }


def test_a_record_that_another_process_is_changing_is_waited_for(
    server: PostgresqlServer, url: str
) -> None:
    """Else the change of the other process would be overwritten."""
    store = PostgresqlStore(url)
    store.unite([RECORD])
    other = Session(parse_server_url(url))
    theirs = replace(RECORD, evidence=(Evidence("theirs", "1", (1.0,)),))
    ours = replace(RECORD, evidence=(Evidence("ours", "1", (1.0,)),))
    with other.transaction():
        other.run("SELECT 1 FROM bestof.record FOR UPDATE")
        store.save(ours)
        while not server.run("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
            pass
        postgresql_schema.change_records(
            other, {RECORD.key: [theirs]}, lambda old, new: old.absorb(new[0]), pytest.fail
        )
    other.close()
    assert store.flush(60.0)
    assert store.contents()[0] == [RECORD.absorb(theirs).absorb(ours)]
    store.close()


def test_a_child_neither_uses_nor_closes_the_connection_of_its_parent(url: str) -> None:
    backend = "SELECT pg_backend_pid()"
    database = PostgresqlDatabase(url)
    database.connect()
    parent = database._session
    assert parent is not None
    (before,) = parent.run(backend)
    database.abandon()
    database.connect()
    assert database._session is not None
    (after,) = database._session.run(backend)
    assert after != before
    assert parent.run(backend) == [before]
    parent.close()
    database.disconnect()


def test_a_fork_shares_no_connection(tmp_path: Path, url: str) -> None:
    file = tmp_path / "forks.py"
    file.write_text("""
import os, sys, warnings
from bestof.selection.store.record import Record
from bestof.selection.store import lifetime
from bestof.selection.store.url import open_store

warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
lifetime.FORK_SECONDS = 60.0  # a loaded machine must not decide
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
    subprocess.run([sys.executable, str(file), url], check=True, timeout=250)
    assert len(read(url)) == 7


def test_the_benchmark_of_a_start_reads_all_and_leaves_nothing(url: str) -> None:
    program = Path(__file__).parents[4] / "benchmarks" / "store_start.py"
    done = subprocess.run(
        [sys.executable, str(program), url, "--problems", "20", "--runs", "1"],
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["open", "driver", "first", "server", "next"]
    assert read(url) == []
