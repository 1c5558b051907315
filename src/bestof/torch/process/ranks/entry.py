"""One entry of the log that all ranks follow, about one problem."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TRY, DECIDE, REOPEN = "try", "decide", "reopen"
_KINDS = (TRY, DECIDE, REOPEN)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the calls of one problem take from now on.

    TRY: the next calls take `tries` in turn, and all further calls `best`. DECIDE: `best` is the
    decision. REOPEN: the decision before is withdrawn, and its alternative answers until the next
    entry holds.

    written: the optimizer step of the rank that wrote the entry. step: the step from which the
    entry holds. If no steps are counted, step equals written, and the entry holds from the call
    with index `call` on. Alternatives are named, because another rank may have others in its list.
    """

    kind: str
    written: int
    step: int
    call: int
    tries: tuple[str, ...] = ()
    best: str = ""

    def fields(self) -> list[object]:
        return [self.kind, self.written, self.step, self.call, list(self.tries), self.best]

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Entry:
        """Return a published entry; ValueError for anything else."""
        try:
            kind, written, step, call, tries, best = fields
            names = tuple(map(str, tries))
            entry = cls(str(kind), int(written), int(step), int(call), names, str(best))
        except (TypeError, ValueError) as error:
            raise ValueError(f"expected an entry of the log; got {fields!r}") from error
        if entry.kind not in _KINDS:
            raise ValueError(f"expected an entry of the log; got {fields!r}")
        return entry


def place_text(entries: Sequence[tuple[str, Entry]]) -> str:
    """Return the text of one place of the log: problem keys and their entries."""
    return json.dumps([[key, *entry.fields()] for key, entry in entries])


def parse_place(text: bytes | str) -> list[tuple[str, Entry]]:
    """Return the keys and entries of one place; ValueError for anything else."""
    try:
        return [(str(key), Entry.parse(fields)) for key, *fields in json.loads(text)]
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ValueError(f"expected a place of the log; got {text!r:.200}") from error
