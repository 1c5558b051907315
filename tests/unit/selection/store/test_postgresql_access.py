"""PostgreSQL servers that refuse: wrong passwords, which are never shown, and wrong places."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
from postgresql_stores import read, write
from stored_records import NEW, RECORDS, save_all

from bestof import BestOf
from bestof.errors import BestofWarning, StoreError
from bestof.selection.store import postgresql_session
from bestof.selection.store.postgresql import PostgresqlStore
from bestof.selection.store.protocol import Store
from postgresql_server import GUARDED, PASSWORD, PostgresqlServer

RECORD = RECORDS[0]


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
    with pytest.raises(StoreError, match=r"permission denied for .*: CREATE SCHEMA"):
        write(url)


def test_a_user_who_may_only_read_reads(server: PostgresqlServer, database: str, url: str) -> None:
    write(url, [RECORD])
    server.run(f"GRANT USAGE ON SCHEMA bestof TO {GUARDED}", database)
    server.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA bestof TO {GUARDED}", database)
    store = PostgresqlStore(server.url(database, GUARDED, quote(PASSWORD, safe="")))
    assert store.load(*RECORD.key) == RECORD
    with pytest.warns(BestofWarning, match=r"permission denied .* let the owner grant"):
        assert not save_all(store, [NEW])
    assert store.load(*NEW.key) == NEW, "kept in memory"
    assert store.load(*RECORD.key) == RECORD
    with pytest.warns(BestofWarning, match="decisions are lost: 1"):
        store.close()


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
        [sys.executable, "-W", "always", "-c", program],
        env={**os.environ, "BESTOF_STORE": "postgresql://u:hid@den@h/d"},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stderr.count("decisions are not kept: the URL of the PostgreSQL store") == 1
    assert "Traceback" not in done.stderr
    assert "den" not in done.stderr
