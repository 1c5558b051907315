"""Orders from outside: an alternative to take without measuring.

The environment variable BESTOF_FORCE gives orders, and so do pins in the store.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bestof.errors import InvalidArgument
from bestof.selection.state.candidate import Candidate
from bestof.selection.store.record import Record
from bestof.selection.trials.circumstances import may_pass


@dataclass(frozen=True, slots=True)
class ForcedChoice:
    """The ordered alternative. `source` becomes the source of its decisions."""

    alternative: str
    source: Literal["forced", "pinned"]

    def refused(self, reason: str, instead: str) -> str:
        """Return the warning for an order that is not obeyed. It says how to withdraw the order.

        instead: what bestof does.
        """
        remedy = (
            "change BESTOF_FORCE"
            if self.source == "forced"
            else "remove the pin with `bestof store unpin`"
        )
        return (
            f"{self.alternative!r} is {self.source}, but {reason}; bestof {instead} instead; "
            f"{remedy}"
        )

    def refusal(self, candidates: Sequence[Candidate], record: Record | None) -> str | None:
        """Return why this order cannot be obeyed, or None if it can.

        `record` is what earlier runs know of the problem.
        """
        candidate = next(
            (one for one in candidates if one.alternative.name == self.alternative), None
        )
        if candidate is None:
            known_names = ", ".join(one.alternative.name for one in candidates)
            return f"the alternatives are {known_names}"
        reason = candidate.disqualified
        if reason is None and not candidate.applies:
            return "it does not apply to this problem"
        if reason is None and record is not None:
            version = candidate.alternative.version
            known = ((one.alternative, one.version, one.disqualified) for one in record.evidence)
            reason = next((why for *key, why in known if key == [self.alternative, version]), None)
            reason = None if reason is not None and may_pass(reason) else reason
        return None if reason is None else f"it was disqualified: {reason}"


def forced(selector: str, alternatives: Sequence[str]) -> ForcedChoice | None:
    """Return the order that BESTOF_FORCE gives to a selector, or None.

    The form is `selector=alternative[,selector=alternative]`. A name ends at the first `=`; a
    backslash before a comma or `=` makes it part of a name. Blanks around names are ignored.
    Raises InvalidArgument for text of another form, and for an alternative that this selector does
    not have.
    """
    order = None
    for name, alternative in orders():
        if name == selector:
            if alternative not in alternatives:
                raise InvalidArgument(
                    f"BestOf({selector!r}): BESTOF_FORCE: expected one of "
                    f"{', '.join(alternatives)}, got {alternative!r}"
                )
            order = ForcedChoice(alternative, "forced")
    return order


def orders() -> list[tuple[str, str]]:
    """Return the orders in BESTOF_FORCE as pairs (selector, alternative).

    Raises InvalidArgument for text of another form, and for two orders that contradict.
    """
    found: dict[str, str] = {}
    parts = re.split(r"(?<!\\),", os.environ.get("BESTOF_FORCE", ""))
    for part in filter(None, map(str.strip, parts)):
        words = re.split(r"(?<!\\)=", part, maxsplit=1)
        name, alternative = (re.sub(r"\\([,=])", r"\1", one).strip() for one in [*words, ""][:2])
        if not (name and alternative):
            cure = r"; if the comma before it is part of a name, write \," if found else ""
            raise InvalidArgument(
                "BESTOF_FORCE: expected selector=alternative[,selector=alternative], got "
                f"{part!r}{cure}"
            )
        if found.setdefault(name, alternative) != alternative:
            raise InvalidArgument(
                f"BESTOF_FORCE: {name!r} cannot take both {found[name]!r} and {alternative!r}; "
                "order one of them"
            )
    return list(found.items())
