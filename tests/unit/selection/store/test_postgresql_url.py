"""URLs of PostgreSQL servers: what is shown of them, and what is refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from bestof.errors import StoreError
from bestof.selection.store.postgresql_url import parse_server_url
from bestof.selection.store.url import open_store


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
        ("postgresql://u:hidden@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgres://u:hid%40den@h,i:5/d?a=b", "postgres://u:***@h,i:5/d?a=b"),
        ("postgresql://:hidden@/d?host=/tmp", "postgresql://:***@/d?host=/tmp"),
        ("postgresql:///d?user=u&password=hidden", "postgresql:///d?user=u&password=***"),
        ("postgresql://h?sslpassword=hidden&x=1", "postgresql://h?sslpassword=***&x=1"),
        ("postgresql://h?PASSWORD=hidden", "postgresql://h?PASSWORD=***"),
        ("postgresql://h?passfile=/home/u/p", "postgresql://h?passfile=/home/u/p"),
        ("postgresql://u:hid:den@[::1]:5/d", "postgresql://u:***@[::1]:5/d"),
        ("POSTGRESQL://u:hidden@h/d", "POSTGRESQL://u:***@h/d"),
        ("postgresql://", "postgresql://"),
    ],
)
def test_a_password_is_not_shown(text: str, shown: str) -> None:
    url = parse_server_url(text)
    assert (url.secret, url.shown) == (text, shown)
    assert "hid" not in repr(url)
    assert url.has_password == ("hid" in text)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:hid@den@h/d",
        "postgresql://u:hid/den@h/d",
        "postgresql://u:hid?den@h/d",
        "postgresql://u:hid@h/d\0",
    ],
)
def test_an_unclear_password_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(StoreError, match="%40 for '@'") as caught:
        open_store(text)
    assert "hid" not in str(caught.value)
    assert "den" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql:/u:hidden@h/d",
        "postgresql+psycopg://u:hidden@h/d",
        "mysql://u:hidden/x@h/d",
        " postgresql://u:hidden@h/d",
        "'postgresql://u:hidden@h/d'",
        "postgres//u:hidden@h/d",
        "//u:hidden@h/d",
        "jdbc:postgresql://h/d?user=u&password=hidden",
        "host=h dbname=d password=hidden",
    ],
)
def test_a_misspelt_url_is_shown_without_its_password(text: str) -> None:
    with pytest.raises(StoreError, match="there is no store") as caught:
        open_store(text)
    assert "hidden" not in str(caught.value)


def test_a_key_of_the_server_is_a_secret() -> None:
    url = parse_server_url("postgresql://u@h/d?scram_client_key=hidden&sslkey=a.pem")
    assert url.shown == "postgresql://u@h/d?scram_client_key=***&sslkey=a.pem"


def test_without_psycopg_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StoreError, match=r"pip install 'bestof-select\[postgresql\]'") as caught:
        open_store("postgresql://u:hidden@h/d")
    assert "hidden" not in str(caught.value)
