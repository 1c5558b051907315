"""The URL of a PostgreSQL server, and its form without passwords."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from bestof.errors import StoreError

_SCHEME = re.compile(r"postgres(?:ql)?://", re.IGNORECASE)
# Names of options that hold a secret. `passfile` and `sslkey` are paths.
_SECRET = re.compile(r"pass(?!file)|secret|_key$", re.IGNORECASE)
_FORM = "postgresql://USER@HOST:PORT/DATABASE"


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """A URL as libpq reads it, and the text that messages show in its place.

    `secret` is the URL as the user gave it. It may hold a password, so nothing prints it.
    """

    secret: str = field(repr=False)
    shown: str

    @property
    def has_password(self) -> bool:
        """Return whether the URL holds a password."""
        return self.secret != self.shown


def is_server_url(text: str) -> bool:
    """Return whether a URL of a store names a PostgreSQL server."""
    return _SCHEME.match(text) is not None


def parse_server_url(text: str) -> ServerUrl:
    """Return the URL with its passwords found.

    Raises StoreError if it is unclear where the password ends. libpq would then take a part of the
    password for the name of the host, and show it in its messages.
    """
    begin = _SCHEME.match(text)
    assert begin is not None
    rest = text[begin.end() :]
    place = re.split(r"[/?]", rest, maxsplit=1)[0]
    options = rest[len(place) :]
    if place.count("@") > 1 or "@" in options or "\0" in text:
        raise StoreError(
            "the URL of the PostgreSQL store has an '@', '/' or '?' where none can be; write "
            f"{_FORM}, and inside a name or a password %40 for '@', %2F for '/' and %3F for '?'"
        )
    user, at, host = place.rpartition("@")
    name, colon, password = user.partition(":")
    shown_user = f"{name}:***" if password else f"{name}{colon}"
    return ServerUrl(text, f"{begin.group()}{shown_user}{at}{host}{_without_secrets(options)}")


def without_password(text: str) -> str:
    """Return a text that may be a misspelt URL without what may be its password."""
    text = re.sub(r"((?::|//)/*[^:/@\s]*:)[^\s]*@", r"\1***@", text)
    return re.sub(r"(pass(?!file)\w*\s*=\s*)[^\s&]+", r"\1***", text, flags=re.IGNORECASE)


def _without_secrets(options: str) -> str:
    path, mark, query = options.partition("?")
    parts = []
    for part in query.split("&"):
        name, equals, value = part.partition("=")
        hidden = value and _SECRET.search(name)
        parts.append(f"{name}{equals}{'***' if hidden else value}")
    return f"{path}{mark}{'&'.join(parts)}"
