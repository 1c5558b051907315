"""Reports as one HTML page, without other files: it works where there is no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from bestof.selection.duration import duration
from bestof.selection.reports.overview import Row, net, overview, problems_of
from bestof.selection.reports.report import AlternativeReport, ProblemReport, Report, Run
from bestof.view.overview import chosen_text, names_of, run_lines
from bestof.view.page_parts import STYLE, controls, page
from bestof.view.quantity import plural, ratio
from bestof.view.time_line import time_line
from bestof.view.tree import Node, decision_trees
from bestof.view.words import (
    UNTRIED,
    WORDS,
    node_facts,
    node_state,
    nothing,
    problem_state,
    selector_line,
    status_text,
    untried_names,
)

_GAINS = 5  # rows on the first screen
_STATES = tuple((one, one) for one in ("noisy", "unsettled", "slower"))
_NUMBERS = ("calls", "before", "after", "gain", "saved")


def html(report: Report) -> str:
    """Return the page: what was gained, the table of layers, the time line, the tree, the words."""
    title = "bestof report" if report.run is None else f"bestof: {report.run.program}"
    return page(title, _parts(report))


def html_part(report: Report) -> str:
    """Return the table alone, for the output of a notebook's cell."""
    style = "".join(STYLE.split("/* page */")[0].splitlines())
    parts = "\n".join(_table(report, overview(report)))
    return f'<style>{style}</style><div class="bestof">{parts}</div>'


def _parts(report: Report) -> Iterator[str]:
    if report.run is not None:
        yield f'<p class="soft">{escape(run_lines(report.run)[1])}</p>'
        if report.run.window is not None:
            yield f'<p class="soft">Window: {escape(report.run.window)}</p>'
    rows = overview(report)
    if not rows:
        yield f"<p>{nothing(report)}</p>"
    else:
        yield from _cards(report)
        yield from _gains(rows)
        yield "<h2>layers and problems</h2>"
        yield from controls(
            "layer, problem, kernel", "operation", (row.key[0] for row in rows), _STATES, len(rows)
        )
        yield from _table(report, rows)
    if report.run is not None and len(report.run.course) > 1:
        yield "<h2>time line</h2>"
        yield time_line(report.run.course)
    yield from _trees(report)
    if rows:
        yield "<h2>search</h2>\n<ul>"
        for selector in report.selectors:
            if selector.problems:
                told = f"{selector.selector}: {selector_line(selector)}"
                yield f"<li>{escape(told)}</li>"
        yield "</ul>"
    yield '<details class="words"><summary>the words of this page</summary>\n<dl>'
    for word, meaning in WORDS:
        yield f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>"
    yield "</dl></details>"


def _cards(report: Report) -> Iterator[str]:
    total, run = net(report), report.run
    cards = []
    if run is not None:
        cards.append(("ran", duration(run.seconds), _without(run, total.saved)))
    if total.calls:
        cards.append(("saved", duration(total.saved), f"in {plural(total.calls, 'settled call')}"))
    if total.trials:
        cards.append(("tuning cost", duration(total.tuning), f"in {plural(total.trials, 'trial')}"))
    if total.calls and total.trials:
        cards.append(("net", duration(total.seconds), "saved, less tuning"))
    if total.unsettled:
        cards.append(("unsettled", str(total.unsettled), "the search goes on"))
    if cards:
        yield '<div class="cards">'
        for name, value, more in cards:
            yield f"<div><span>{name}</span><b>{value}</b><span>{escape(more)}</span></div>"
        yield "</div>"


def _without(run: Run, saved: float) -> str:
    return f"{duration(run.seconds + saved)} by the first alternatives" if saved > 0 else ""


def _gains(rows: Sequence[Row]) -> Iterator[str]:
    named = zip(names_of(rows), rows, strict=True)
    best = sorted((one for one in named if one[1].saved > 0), key=lambda one: -one[1].saved)
    if not best:
        return
    yield "<h2>what gained most</h2>\n<ol>"
    for name, row in best[:_GAINS]:
        yield (
            f"<li><b>{escape(name)}</b>: {duration(row.saved)} saved, {ratio(row.gain)} as fast by "
            f"{escape(chosen_text(row))}</li>"
        )
    yield "</ol>"


def _table(report: Report, rows: Sequence[Row]) -> Iterator[str]:
    problems = problems_of(report)
    yield '<div class="scroll" tabindex="0" role="region" aria-label="layers and problems">'
    yield '<table id="rows">\n<thead><tr>'
    for heading in ("layer or problem", *_NUMBERS, "chosen"):
        kind = ' class="number"' if heading in _NUMBERS else ""
        yield f'<th scope="col"{kind}><button type="button">{heading}</button></th>'
    yield "</tr></thead>\n<tbody>"
    for name, row in zip(names_of(rows), rows, strict=True):
        yield from _row(name, row, problems)
    yield "</tbody></table></div>"


def _row(name: str, row: Row, problems: dict[tuple[str, str], ProblemReport]) -> Iterator[str]:
    states = ["noisy"] if row.noisy else []
    states += ["unsettled"] if row.chosen is None else []
    states += ["slower"] if row.saved < 0 else []
    yield f'<tr data-operation="{escape(row.key[0])}" data-state="{" ".join(states)}">'
    yield f'<th scope="row" data-label="layer or problem">{escape(name)}</th>'
    numbers = (
        (row.calls, f"{row.calls:,}" if row.calls else ""),
        (row.before, duration(row.before)),
        (row.after, duration(row.after)),
        (row.gain, ratio(row.gain)),
        (row.saved, duration(row.saved) if row.counted else ""),
    )
    for label, (value, text) in zip(_NUMBERS, numbers, strict=True):
        yield f'<td class="number" data-label="{label}" data-value="{value or 0:.9g}">{text}</td>'
    marks = "".join(f' <span class="mark {state}">{state}</span>' for state in states)
    yield f'<td data-label="chosen"><details><summary>{escape(chosen_text(row))}{marks}</summary>'
    if row.places:
        yield f'<p class="soft">{escape(", ".join(row.places))}</p>'
    for note in (row.remark, row.why, row.drift, row.refusals):
        if note is not None:
            yield f"<p>{escape(note)}</p>"
    problem = problems[row.key]
    yield from _alternatives(row.key, problem)
    for child in dict.fromkeys(
        child for one in problem.alternatives for child in one.children if child in problems
    ):
        yield from _alternatives(child, problems[child])
    yield "</details></td></tr>"


def _alternatives(key: tuple[str, str], problem: ProblemReport) -> Iterator[str]:
    state = "soft" if problem.settled else "unsettled"
    yield f'<h3>{escape(" ".join(key))} <span class="{state}">'
    yield f"[{escape(problem_state(problem))}]</span></h3>"
    shown = [one for one in problem.alternatives if one.status not in UNTRIED]
    slowest = max((_end(one) for one in shown), default=0.0)
    yield "<table><thead><tr><th></th><th>alternative</th>"
    yield '<th class="number">time</th><th class="number">spread</th><th class="bar"></th>'
    yield '<th class="number">trials</th><th class="number">speed-up</th><th>status</th>'
    yield "</tr></thead><tbody>"
    for one in shown:
        yield _alternative(one, one.name == problem.decision, slowest)
    yield "</tbody></table>"
    reasons = untried_names(problem)
    if reasons:
        count = sum(map(len, reasons.values()))
        yield f'<details class="reasons"><summary>{count} not tried</summary><dl>'
        for reason, names in reasons.items():
            yield f"<dt>{escape(reason)}</dt><dd>{escape(', '.join(names))}</dd>"
        yield "</dl></details>"


def _alternative(one: AlternativeReport, chosen: bool, slowest: float) -> str:
    kind = "chosen" if chosen else {"disqualified": "bad", "measured": ""}.get(one.status, "soft")
    spread = f"± {duration(one.spread)}" if one.spread is not None else ""
    trials = str(one.trials) if one.trials else ""
    numbers = [duration(one.seconds), spread, trials, ratio(one.speedup)]
    cells = [f'<td class="number">{escape(number)}</td>' for number in numbers]
    cells.insert(2, f'<td class="bar">{_bar(one, slowest)}</td>')
    mark, name, status = "*" if chosen else "", escape(one.name), escape(status_text(one))
    return (
        f'<tr class="{kind}"><td>{mark}</td><td>{name}</td>{"".join(cells)}<td>{status}</td></tr>'
    )


def _bar(one: AlternativeReport, slowest: float) -> str:
    """Return a bar for the time, with a line for its spread; the slowest is 100 wide."""
    if one.seconds is None or slowest <= 0.0:
        return ""
    scale = 100.0 / slowest
    width, spread = one.seconds * scale, (one.spread or 0.0) * scale
    line = f'<path d="M{max(0.0, width - spread):.1f} 5H{width + spread:.1f}"/>' if spread else ""
    return (
        '<svg viewBox="0 0 100 10" width="70" height="10" preserveAspectRatio="none" '
        'aria-hidden="true">'
        f'<rect y="1" width="{width:.1f}" height="8"/>{line}</svg>'
    )


def _end(one: AlternativeReport) -> float:
    return (one.seconds or 0.0) + (one.spread or 0.0)


def _trees(report: Report) -> Iterator[str]:
    trees = decision_trees(report)
    if not trees:
        return
    yield '<details class="tree"><summary><h2>decision tree</h2></summary>\n<ul>'
    for tree in trees:
        yield from _leaf(tree) if tree.leaf else _node(tree, aside=False)
    yield "</ul>\n</details>"


def _leaf(node: Node) -> Iterator[str]:
    yield from _node_line(node, aside=False)
    yield f'<span class="soft">{escape(" ".join(node_facts(node)))}</span></li>'


def _node_line(node: Node, aside: bool) -> Iterator[str]:
    kind = "soft" if aside else "chosen" if node.settled else "unsettled"
    yield f"<li>{escape(node.selector)} {escape(node.problem)} → "
    yield f'<span class="{kind}">{escape(node_state(node))}</span>'


def _node(node: Node, aside: bool) -> Iterator[str]:
    yield from _node_line(node, aside)
    if node.branches:
        yield "<ul>"
        for branch in node.branches:
            second = aside or (node.settled and not branch.chosen)
            kind = "soft" if second else "chosen" if branch.chosen else ""
            mark = "* " if branch.chosen else ""
            time = duration(branch.alternative.seconds)
            yield f'<li><span class="{kind}">{mark}{escape(branch.alternative.name)} {time}</span>'
            if branch.nodes:
                yield "<ul>"
                for inner in branch.nodes:
                    yield from _node(inner, second)
                yield "</ul>"
            yield "</li>"
        yield "</ul>"
    yield "</li>"
