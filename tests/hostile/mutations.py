"""Stores, lock files and plans with random changes give a clear error or a correct answer."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import sqlite3
import struct
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from bestof.errors import BestofError, StoreError
from bestof.selection.reports.report_builder import store_report
from bestof.selection.store.lock_file import export_records, import_pins, import_records
from bestof.selection.store.record import Child, Evidence, Pin, Record
from bestof.selection.store.sqlite import SqliteStore
from bestof.view import print_records, print_report

BATCH = 250  # mutations a process: one that crashes takes no more with it
RECORDS = [
    Record(
        "conv",
        f"({n}, 'é')",
        "here",
        "a",
        (Evidence("a", "1", (1e-3, 2e-3), None, (Child("in", "1"),)), Evidence("b", "1", (), "no")),
        float(n),
    )
    for n in range(20)
]


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Return the content with some bytes changed, removed, repeated or added."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        place = chance.randrange(len(changed) + 1)
        length = chance.choice((1, 1, 2, 16, 500))
        match chance.randrange(5):
            case 0:
                changed[place : place + length] = chance.randbytes(
                    len(changed[place : place + length])
                )
            case 1:
                del changed[place : place + length]
            case 2:
                changed[place:place] = changed[place : place + length]
            case 3:
                changed[place:place] = chance.choice((b"\0", b"\xff", b'"', b"[", b"{", b"NaN"))
            case _:
                del changed[place:]
        if not changed:
            break
    return bytes(changed)


def stores(folder: Path, count: int, seed: int) -> Counter[str]:
    """Open, read and write mutated stores."""
    path = folder / "whole.sqlite"
    store = SqliteStore(path)
    for record in RECORDS:
        store.save(record)
    store.close()
    whole = path.read_bytes()

    def one(chance: random.Random, number: int) -> str:
        place = folder / f"{number}.sqlite"
        place.write_bytes(mutated(whole, chance))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                opened = SqliteStore(place, claimed=chance.random() < 0.5)
            except StoreError:
                place.unlink()
                return "refused"
            for record in RECORDS[:3]:
                opened.load(*record.key)
            opened.pinned("conv", "p", "h")
            new = Record("new", "p", "h", "a", (Evidence("a", "1", (1.0,)),), 1.0)
            opened.save(new)
            written = opened.flush(60.0)
            assert opened.load(*new.key) == new, "what was saved is not there"
            opened.records()
            opened.close()
        assert written or told, "not written, and not told"
        for left in folder.glob(f"{number}.sqlite*"):
            left.unlink()
        return "set aside" if told else "read"

    return in_processes(one, count, seed)


HOSTILE = (
    *("__import__('os').system('id')", "'); DROP TABLE record; --", "%s%n{0}", "\x1b[31m", ""),
    *("[", "[" * 5000, "[" + "9" * 400 + "]", "[NaN]", "[1e400]", "[-1]", "[null]", '["1"]', "{}"),
    *('[["a"]]', '[["a", 1]]', '"\\ud800"', "9" * 400, "x" * 70_000, "\0", "\U0010ffff"),
    *(None, 0, -1, 2**63 - 1, 1e308, float("inf"), b"", b"\xff\xfe", b"[1.0]", b"\0" * 5000),
)
COLUMNS = {
    "record": ("selector", "problem", "host", "decision", "updated"),
    "evidence": ("record", "alternative", "version", "samples", "disqualified", "children"),
    "pin": ("selector", "problem", "host", "alternative"),
}


def rows(folder: Path, count: int, seed: int) -> Counter[str]:
    """Read and show stores whose rows hold other values; SQLite finds nothing wrong with them."""
    path = folder / "rows.sqlite"
    store = SqliteStore(path)
    for record in RECORDS:
        store.save(record)
    store.pin("conv", "a", "p", "h"), store.pin("conv", "b")
    store.close()
    whole = path.read_bytes()

    def one(chance: random.Random, number: int) -> str:
        os.environ["BESTOF_STORE_WAIT"] = "60"  # in this child
        place = folder / f"{number}.sqlite"
        place.write_bytes(whole)
        connection = sqlite3.connect(place, isolation_level=None)
        for _ in range(chance.choice((1, 1, 5))):
            table = chance.choice(tuple(COLUMNS))
            column, value = chance.choice(COLUMNS[table]), chance.choice(HOSTILE)
            which = "" if chance.random() < 0.2 else "ORDER BY random() LIMIT 1"
            query = f"""UPDATE OR IGNORE {table} SET {column} = ?
                WHERE rowid IN (SELECT rowid FROM {table} {which})"""
            with suppress(sqlite3.IntegrityError):
                connection.execute(query, (value,))
        connection.close()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            opened = SqliteStore(place)
            records, pins = opened.contents()
            for record in [*RECORDS[:3], *records]:
                opened.load(*record.key)
                opened.elsewhere(record.selector, record.problem, "another")
                opened.pinned(*record.key)
            text = export_records(records, pins)
            assert len(import_records(text)) == len(records)
            assert import_pins(text) == pins
            with redirect_stdout(io.StringIO()):
                print_records(records, opened.url, 1.0)
                print_report(store_report(opened))
            for record in RECORDS:
                opened.save(record)
            assert opened.flush(60.0), [str(one.message) for one in told]
            for record in RECORDS:
                loaded = opened.load(*record.key)
                assert loaded is not None, record.key
                kept = {item.alternative: item for item in loaded.evidence}
                assert all(kept[item.alternative] == item for item in record.evidence)
            opened.close()
        assert len(told) <= 1, [str(one.message) for one in told]
        assert not list(folder.glob(f"{number}.sqlite.damaged*")), "a healthy file was renamed"
        for left in folder.glob(f"{number}.sqlite*"):
            left.unlink()
        return "told" if told else "read"

    return in_processes(one, count, seed)


def lock_files(folder: Path, count: int, seed: int) -> Counter[str]:
    """Import mutated lock files."""
    whole = export_records(RECORDS, [Pin("conv", "a", "p", "h"), Pin("conv", "b")]).encode()

    def one(chance: random.Random, number: int) -> str:
        text = mutated(whole, chance).decode("utf-8", "surrogateescape")
        try:
            import_records(text)
            import_pins(text)
        except StoreError as error:
            return refused(error, "lock file, line ")
        return "read"

    return in_processes(one, count, seed)


def plans(folder: Path, count: int, seed: int) -> Counter[str]:
    """Load mutated plans, half of them with checksums that are right again; call what could be
    loaded."""
    import torch  # noqa: PLC0415  the other two need no torch
    from torch import nn  # noqa: PLC0415

    import bestof.torch as bt  # noqa: PLC0415

    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)).eval()
    image = torch.randn(1, 3, 12, 12)
    path = folder / "whole.plan"
    bt.optimize(model, image).save(path)
    whole = path.read_bytes()

    def one(chance: random.Random, number: int) -> str:
        changed = mutated_plan(whole, chance) if number % 2 else mutated(whole, chance)
        place = folder / f"{number}.plan"
        place.write_bytes(changed)
        try:
            loaded = bt.load(place)
        except BestofError as error:
            return refused(error, "load: ")
        finally:
            place.unlink()
        try:
            with torch.no_grad():
                loaded(image)
        except (BestofError, IndexError) as error:
            return f"loaded, and a call raised {one_line(error)}"
        return "loaded"

    return in_processes(one, count, seed)


def refused(error: BestofError, beginning: str) -> str:
    """Return that a file was refused, if the message begins as it should."""
    assert str(error).startswith(beginning), str(error)
    one_line(error)
    return "refused"


def one_line(error: Exception) -> str:
    """Return the type of an error, whose message must be one line."""
    assert "\n" not in str(error), str(error)
    return type(error).__name__


def mutated_plan(whole: bytes, chance: random.Random) -> bytes:
    """Return the plan with a value of its text changed, and its checksum right."""
    header = struct.Struct("<12sIQ32s")
    magic, version, length, _ = header.unpack(whole[: header.size])
    content = json.loads(whole[header.size : header.size + length])
    target, key = chance.choice(list(values(content)))
    target[key] = chance.choice(
        (None, -1, 0, 1, 2**31, 2**63, 1.5, "", "x", [], {}, True, [target[key]], 10**30)
    )
    text = json.dumps(content).encode()
    begin = header.pack(magic, version, len(text), hashlib.sha256(text).digest())
    return begin + text + whole[header.size + length :]


def values(content: Any) -> Any:
    """Yield (container, key) of every value inside a JSON document."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in pairs:
        yield content, key
        if isinstance(value, dict | list):
            yield from values(value)


def in_processes(one: Callable[[random.Random, int], str], count: int, seed: int) -> Counter[str]:
    """Count what becomes of so many mutations; children take them in batches, and a crash is
    counted."""
    found: Counter[str] = Counter()
    for begin in range(0, count, BATCH):
        numbers = range(begin, min(begin + BATCH, count))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            with os.fdopen(write, "w") as out:
                for number in numbers:
                    try:
                        what = one(random.Random(seed * 1_000_003 + number), number)
                    except BaseException as error:
                        traceback.print_exc()
                        what = f"FAILED: number {number}: {type(error).__name__}"
                    print(what, file=out, flush=True)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as said:
            lines = said.read().splitlines()
        status = os.waitpid(child, 0)[1]
        found.update(lines)
        if status != 0:
            found[f"FAILED: number {numbers[0] + len(lines)}: status {status}"] += 1
    return found
