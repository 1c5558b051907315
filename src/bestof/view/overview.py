"""The one screen of a report: a row for each layer or problem, the dearest first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime

from bestof.selection.duration import duration
from bestof.selection.reports.overview import Net, Row, net, overview
from bestof.selection.reports.report import Report, Run
from bestof.view.columns import columns
from bestof.view.printable import printable
from bestof.view.quantity import plural, ratio
from bestof.view.words import nothing

ROWS = 25
"""Rows of one screen."""

_FOOTNOTES = 4  # remarks below the table; `--all` shows the others
_NAME = "layer or problem"
_NUMBERS = ("calls", "before", "after", "gain", "saved", "")
_END = re.compile(r"( \+\d+)?( \([^()]*\))?$")  # of a name, see `names_of`
_USUAL = re.compile(r",(s1|p0|d1|g1)\b")
_FAMILY = re.compile(r" \((convolution |product, )")
_THREADS = re.compile(r" threads=\d+")
_NARROWEST = 16  # columns of a name


def overview_text(report: Report, width: int | None = None, most: int | None = None) -> str:
    """Return the table of a report below its title, and the net line.

    width: of the lines, in columns (None: 100). most: the rows that are shown (None: all).
    """
    rows = overview(report)
    lines = [] if report.run is None else [*run_lines(report.run), ""]
    if not rows:
        return "\n".join([*lines, nothing(report)])
    lines += table_lines(rows, width or 100, most)
    lines += ["", *net_lines(net(report)), *_unsettled(rows)]
    if report.run is not None and report.run.window is not None:
        lines.append(printable(f"window: {report.run.window}"))
    lines.append("--explain-words explains the words, --all shows every alternative")
    return "\n".join(lines)


def run_lines(run: Run) -> list[str]:
    """Return the program and its duration; then the date, versions and processor."""
    try:
        began = datetime.fromtimestamp(run.began).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):  # a saved report may hold any number
        began = "at an unknown date"
    return [
        f"{printable(run.program)} ran {duration(run.seconds)}",
        printable(", ".join([began, *run.versions, run.host])),
    ]


def table_lines(rows: Sequence[Row], width: int, most: int | None) -> list[str]:
    """Return the table of rows of an overview, with footnotes; `most` as for `overview_text`."""
    shown = rows[:most]
    notes: dict[str, int] = {}
    numbers = [_numbers(row) for row in shown]
    kept = [place for place, _ in enumerate(_NUMBERS) if any(row[place] for row in numbers)]
    middle = [max(len(_NUMBERS[place]), *(len(row[place]) for row in numbers)) for place in kept]
    room = max(2 * _NARROWEST, width - sum(middle) - 2 * len(middle) - 2)
    chosen = [printable(chosen_text(row)) + _marks(row, notes) for row in shown]
    names = [printable(name) for name in names_of(rows)[: len(shown)]]
    longest = max(map(len, ["chosen", *chosen]))
    if longest + max(map(len, names)) > room:
        names = [_brief(name) for name in names]
    # The longer column gives way, but not below half of the room.
    for_chosen = min(longest, max(room // 2, room - max(map(len, names))))
    names = _cut_names(names, max(room - for_chosen, len(_NAME)))
    table = [
        [
            name,
            *(row[place].rjust(wide) for place, wide in zip(kept, middle, strict=True)),
            cut(picked, for_chosen),
        ]
        for name, row, picked in zip(names, numbers, chosen, strict=True)
    ]
    titles = [_NUMBERS[place].rjust(wide) for place, wide in zip(kept, middle, strict=True)]
    lines = columns([_NAME, *titles, "chosen"], table, left=len(kept) + 2)
    hidden = len(rows) - len(shown)
    if hidden:
        lines.append(f"… and {hidden:,} more, which take less time")
    if any(row.noisy for row in shown):
        lines.append("~ noisy: another alternative may be faster; the next run verifies it early")
    return [*lines, *(f"[{number}] {printable(note)}" for note, number in notes.items())]


def _numbers(row: Row) -> tuple[str, ...]:
    return (
        f"{row.calls:,}" if row.calls else "",
        duration(row.before),
        duration(row.after),
        ratio(row.gain),
        duration(row.saved) if row.counted else "",
        "~" if row.noisy else "",
    )


def _marks(row: Row, notes: dict[str, int]) -> str:
    """Return the numbers of a row's footnotes, and add those to `notes` that are new."""
    marks = ""
    for note in (row.remark, row.drift, row.refusals):
        if note is not None and (note in notes or len(notes) < _FOOTNOTES):
            marks += f" [{notes.setdefault(note, len(notes) + 1)}]"
    return marks


def _cut_names(names: Sequence[str], width: int) -> list[str]:
    """Return the names in at most `width` columns, so that as many as possible differ.

    The layers of a transformer differ at the ends of their paths, the stages of a ResNet before.
    """
    ways = [[_cut_name(one, width, way) for one in names] for way in (_cut_beginning, cut)]
    return max(ways, key=lambda shown: len(set(shown)))


def _cut_name(name: str, width: int, way: Callable[[str, int], str]) -> str:
    """Return the name in at most `width` columns.

    way: how the path of a module gives way. What stands in brackets does so before it, down to
    three fifths of the width. The number of like modules is never cut.
    """
    end = _END.search(name)
    if len(name) <= width or end is None:
        return name
    count, detail = end[1] or "", end[2] or ""
    place = name[: len(name) - len(count) - len(detail)]
    room = max(3 * width // 5, width - len(place) - len(count))
    if len(detail) > room:
        detail = f" ({cut(detail[2:-1], room - 3)})"
    room = width - len(count) - len(detail)
    shorten = cut if " " in place else way  # a selector and its problem have a space between them
    return f"{shorten(place, room)}{count}{detail}"


def _cut_beginning(text: str, width: int) -> str:
    return text if len(text) <= width else f"…{text[len(text) - width + 1 :]}"


def _brief(name: str) -> str:
    """Return the name of a pass of a convolution, or of a product, without that word, and its
    notation without the usual stride, padding, dilation and groups."""
    return _USUAL.sub("", _FAMILY.sub(" (", name, count=1))


def names_of(rows: Sequence[Row]) -> list[str]:
    """Return a name for each row: the modules that met it, or else the selector and the problem.

    If rows share a module, the selector tells them apart, then the words of the problem in which
    they differ, such as the batch, or else the whole problem.
    """
    keys = [" ".join(row.key) for row in rows]
    if len({one for key in keys for one in _THREADS.findall(key)}) == 1:
        keys = [_THREADS.sub("", key) for key in keys]
    places = [_places(row.places) or key for row, key in zip(rows, keys, strict=True)]
    met = Counter(module for row in rows for module in row.places)
    names = [
        f"{place} ({row.key[0]})" if any(met[module] > 1 for module in row.places) else place
        for place, row in zip(places, rows, strict=True)
    ]
    for details in (
        _differences(places, rows),
        [row.key[1] for row in rows],
    ):
        twice = {name for name, count in Counter(names).items() if count > 1}
        names = [
            f"{place} ({detail})" if name in twice else name
            for name, place, detail in zip(names, places, details, strict=True)
        ]
    return names


def _differences(places: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return the selector of each row, and the words of its problem that the others of the same
    places and selector lack."""
    words = [re.split(r"[ ,]+", row.key[1]) for row in rows]
    groups = [(place, row.key[0]) for place, row in zip(places, rows, strict=True)]
    shared: dict[tuple[str, str], set[str]] = {}
    for group, one in zip(groups, words, strict=True):
        shared[group] = shared.get(group, set(one)) & set(one)
    own = [
        " ".join(word for word in one if word not in shared[group])
        for group, one in zip(groups, words, strict=True)
    ]
    return [
        f"{selector}, {text}" if text else selector
        for (_, selector), text in zip(groups, own, strict=True)
    ]


def chosen_text(row: Row) -> str:
    """Return what was chosen: inside a group, what was chosen for each of its parts."""
    if row.chosen is None:
        return "unsettled"
    inside = tuple(dict.fromkeys(row.inside)) if len(set(row.inside)) == 1 else row.inside
    return ", ".join(inside) or row.chosen


def net_lines(total: Net) -> list[str]:
    """Return what the decisions saved, less what tuning cost."""
    saved = f"saved {duration(total.saved)} in {plural(total.calls, 'settled call')}"
    cost = f"tuning cost {duration(total.tuning)} in {plural(total.trials, 'trial')}"
    if total.calls and total.trials:
        return [f"{saved}, {cost}: net {duration(total.seconds)}"]
    return [f"{saved}, without a trial"] if total.calls else [cost] if total.trials else []


def cut(text: str, width: int) -> str:
    """Return the text, with an ellipsis in its middle if it is longer than `width`."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _unsettled(rows: Sequence[Row]) -> list[str]:
    count = sum(row.chosen is None for row in rows)
    return [f"{plural(count, 'row')} unsettled: the search goes on"] if count else []


def _places(places: Sequence[str]) -> str:
    return f"{places[0]} +{len(places) - 1}" if len(places) > 1 else "".join(places)
