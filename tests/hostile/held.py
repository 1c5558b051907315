"""Stores whose file another process holds, slows down, or cannot lock: waits and losses."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from shim import environment

from bestof.selection.store.sqlite import SqliteStore

HERE = Path(__file__).parent


def waits(
    folder: Path,
    calls: int,
    *,
    hold: str | None = None,
    library: Path | None = None,
    mode: str = "",
) -> dict[str, Any]:
    """Run waits.py over a store that is held (`read`: for readers too) or whose file system
    misbehaves."""
    folder.mkdir(parents=True)
    path = folder / "decisions.sqlite"
    store = SqliteStore(path)
    store.pin("other", "a")
    store.close()
    holder = None
    if hold is not None:
        holder = sqlite3.connect(path, isolation_level=None)
        if hold == "read":
            holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        holder.execute("INSERT INTO pin VALUES ('held', NULL, NULL, 'a')")
    env = dict(os.environ) if library is None else environment(library, mode, folder)
    env.pop("BESTOF_STORE_WAIT", None)
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "waits.py"), str(folder), str(calls)],
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        if holder is not None:
            holder.execute("ROLLBACK")
            holder.close()
    if done.returncode != 0:
        return {"failed": done.stderr, "above": 0, "told": [], "traceback": done.stderr}
    found: dict[str, Any] = json.loads(done.stdout)
    store = SqliteStore(path)
    found["kept"] = len(store.records())
    store.close()
    found["traceback"] = done.stderr if "Traceback" in done.stderr else ""
    return found
