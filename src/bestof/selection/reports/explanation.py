"""Explain stored decisions: find the reason that the evidence supports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bestof.html_table import html_table
from bestof.selection.duration import duration
from bestof.selection.policies import Race
from bestof.selection.store.pin_order import closest
from bestof.selection.store.record import Evidence, Pin, Record


@dataclass(frozen=True, slots=True)
class Explanation:
    """One record, and why its decision stands.

    `pinned` is the alternative that a pin orders for it, or None.
    """

    record: Record
    pinned: str | None
    why: str

    def _repr_html_(self) -> str:
        """Return a table for notebooks: the evidence, and the reason below."""
        rows = [
            (one.alternative, duration(one.seconds), str(len(one.samples)), one.disqualified or "")
            for one in self.record.evidence
        ]
        chosen = [row[0] == self.record.decision for row in rows]
        return html_table(
            f"{self.record.selector} {self.record.problem}",
            ("alternative", "time", "samples", "disqualified"),
            rows,
            strong=[place for place, is_chosen in enumerate(chosen) if is_chosen],
            notes=[self.why],
        )


def explain(
    records: Iterable[Record], pins: Iterable[Pin], selector: str, problem: str | None
) -> list[Explanation]:
    """Return the records of a selector, then those of the choices met inside them.

    `problem` restricts this to one problem of the selector. A choice met inside is looked up on the
    host of the record that met it. Each record appears once.
    """
    known = {record.key: record for record in records}
    orders = list(pins)
    found = [key for key in known if key[0] == selector and problem in (None, key[1])]
    # The list grows during the loop, so that choices inside choices are found too.
    for key in found:
        for evidence in known[key].evidence:
            for child in evidence.children:
                inner = (child.selector, child.problem, key[2])
                if inner in known and inner not in found:
                    found.append(inner)
    return [_explanation(known[key], orders) for key in found]


def _explanation(record: Record, pins: Iterable[Pin]) -> Explanation:
    pinned = closest(
        (pin for pin in pins if pin.selector == record.selector), record.problem, record.host
    )
    why = _why(record)
    if pinned is not None:
        why = f"pinned: {pinned} is taken without measuring; without the pin: {why}"
    return Explanation(record, pinned, why)


def _why(record: Record) -> str:
    """Return the rule that agrees with the samples.

    A record keeps samples but no policy, so this is an inference.
    """
    timed = {
        one.alternative: one
        for one in record.evidence
        if one.seconds is not None and one.disqualified is None
    }
    out = [one.alternative for one in record.evidence if one.disqualified is not None]
    if record.decision is None:
        best = _fastest(timed.values())
        so_far = f"; {best.alternative} leads so far" if best is not None else ""
        return f"unsettled: the search goes on at the next run{so_far}"
    chosen = timed.pop(record.decision, None)
    if chosen is None or chosen.seconds is None:
        return f"{record.decision} was decided; its samples are no longer in the store"
    rival = _fastest(timed.values())
    if rival is None or rival.seconds is None:
        reason = f", after {', '.join(out)} was disqualified" if out else ""
        return f"{record.decision} is the only alternative with samples{reason}"
    if chosen.seconds <= rival.seconds:
        early = sorted(
            name for name, one in timed.items() if len(one.samples) < len(chosen.samples)
        )
        dropped = (
            f"; {', '.join(early)} left the search earlier, with fewer trials" if early else ""
        )
        return (
            f"{record.decision} has the lowest median, {_percent(rival.seconds, chosen.seconds)} "
            f"below that of {rival.alternative}, the next{dropped}"
        )
    behind = _percent(chosen.seconds, rival.seconds)
    if chosen.seconds <= rival.seconds * (1.0 + Race().tie):
        return (
            f"{record.decision} ties with {rival.alternative}, whose median is {behind} lower: "
            f"within the tie band of {Race().tie:.0%}, the first in the list wins"
        )
    return (
        f"{rival.alternative} has a median {behind} lower than {record.decision}, which is more "
        f"than a tie of {Race().tie:.0%}: operations of PyTorch take up to 8 % for one, and add 40 "
        "us to what Python must call; else another policy made the decision, or it is older than "
        "this evidence, and `bestof store clear --selector` makes bestof measure again"
    )


def _fastest(evidence: Iterable[Evidence]) -> Evidence | None:
    return min(evidence, key=lambda one: one.seconds or 0.0, default=None)


def _percent(above: float, below: float) -> str:
    return f"{100.0 * (1.0 - below / above) if above else 0.0:.1f} %"
