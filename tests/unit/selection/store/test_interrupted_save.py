"""A signal handler raises inside a save, at any bytecode: the transaction is rolled back."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from bestof.selection.store.record import Evidence, Record
from bestof.selection.store.sqlite_database import SqliteDatabase

PACKAGE = os.path.join("selection", "store")
RECORD = Record("s", "p", "h", "a", (Evidence("a", "1", (1.0, 2.0)),), 1.0)


class Alarm(BaseException):
    """What a signal handler raises."""


class Interrupter:
    """Raises Alarm at the bytecode of this number among those of the store's own code."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if PACKAGE not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise Alarm
        return self


def interrupted(database: SqliteDatabase, number: int) -> bool:
    """Write the record, interrupted; whether the interruption came before the end."""
    before = sys.gettrace()
    sys.settrace(Interrupter(number))
    try:
        database.write([RECORD])
    except Alarm:
        return True
    finally:
        sys.settrace(before)
    return False


# A file that was open at the interruption is closed by the interpreter, which says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("connected", [True, False])
def test_whatever_is_raised_inside_a_save_leaves_no_transaction_open(
    tmp_path: Path, connected: bool
) -> None:
    path = tmp_path / "d"
    SqliteDatabase(path).write([RECORD])
    database = SqliteDatabase(path)
    number, more = 0, True
    while more:
        number += 1 if number < 400 else 7
        if connected:
            database.load(*RECORD.key)
        more = interrupted(database, number)
        # Another process finds the file free: no transaction, and no lock of the folder.
        other = sqlite3.connect(path, timeout=0.0, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("COMMIT")
        other.close()
        database.write([RECORD])
        assert database.load(*RECORD.key) == RECORD
        if not connected:
            database.disconnect()
    assert number > 100, "the interrupter saw too little"
    database.disconnect()
