"""One entry of the script that all ranks follow for a problem."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """From `step` on, the calls of the problem take `tries` in turn, and all further calls `best`.

    written: the step of the rank that wrote the entry. decided: whether `best` is the decision.
    Alternatives are given by name, because another rank may have another list.
    """

    written: int
    step: int
    tries: tuple[str, ...]
    best: str
    decided: bool = False

    def text(self) -> str:
        """Return the entry as it is published."""
        return json.dumps([self.written, self.step, list(self.tries), self.best, self.decided])

    @classmethod
    def parse(cls, text: bytes | str) -> Entry:
        """Return a published entry. Raises ValueError for any other text."""
        try:
            written, step, tries, best, decided = json.loads(text)
            entry = cls(int(written), int(step), tuple(map(str, tries)), str(best), bool(decided))
        except (TypeError, ValueError) as error:
            raise ValueError(f"expected an entry of a script; got {text!r}") from error
        return entry
