"""Reports as one HTML page, without other files."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from bestof.selection.duration import duration
from bestof.selection.reports.report import AlternativeReport, ProblemReport, Report, SelectorReport
from bestof.view.quantity import ratio
from bestof.view.tree import Node, decision_trees
from bestof.view.words import (
    NOTHING,
    node_facts,
    node_state,
    problem_state,
    selector_line,
    status_text,
)

_STYLE = """\
:root { color-scheme: light dark; --line: #8884; --soft: #888; }
:root { --good: #1a7f37; --bad: #c62828; --wait: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff7b72; --wait: #d4a72c; } }
body { font: 15px/1.45 system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0; border-bottom: 1px solid var(--line); }
p.price, .state { color: var(--soft); } p.price { margin: .2rem 0 .8rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .7rem; text-align: left; vertical-align: top; }
td, h2, li { overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: normal; }
tbody th { padding-top: .7rem; overflow-wrap: anywhere; } tbody th .state { font-weight: normal; }
.number { text-align: right; white-space: nowrap; }
tr.chosen td, .tree .chosen { color: var(--good); font-weight: 600; }
tr.disqualified td { color: var(--bad); } tr.aside td, .tree .aside { color: var(--soft); }
.unsettled { color: var(--wait) !important; font-weight: 600; }
.tree ul { list-style: none; margin: 0; padding-left: 1.3rem; border-left: 1px solid var(--line); }
.tree > ul { padding-left: 0; border: 0; }
"""


def html(report: Report) -> str:
    """Return the page: a table for each selector, then the tree of decisions."""
    return "\n".join(_page(report))


def _page(report: Report) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>bestof report</title>\n<style>\n{_STYLE}</style>\n</head>"
    yield "<body>\n<h1>bestof report</h1>"
    used = [selector for selector in report.selectors if selector.problems]
    if not used:
        yield f"<p>{NOTHING}</p>"
    for selector in used:
        yield from _selector(selector)
    trees = decision_trees(report)
    if trees:
        yield '<h2>decision tree</h2>\n<div class="tree">\n<ul>'
        for tree in trees:
            yield from _leaf(tree) if tree.leaf else _node(tree, aside=False)
        yield "</ul>\n</div>"
    yield "</body>\n</html>"


def _selector(selector: SelectorReport) -> Iterator[str]:
    yield f"<h2>{escape(selector.selector)}</h2>"
    yield f'<p class="price">{escape(selector_line(selector))}</p>'
    yield '<div class="scroll"><table>\n<thead><tr><th></th><th>alternative</th>'
    for heading in ("time", "spread", "trials", "speed-up"):
        yield f'<th class="number">{heading}</th>'
    yield "<th>status</th></tr></thead>"
    for problem in selector.problems:
        yield from _problem(problem)
    yield "</table></div>"


def _problem(problem: ProblemReport) -> Iterator[str]:
    state = "state" if problem.settled else "state unsettled"
    yield f'<tbody>\n<tr><th colspan="7" scope="rowgroup">{escape(problem.problem)}'
    yield f'<span class="{state}"> [{escape(problem_state(problem))}]</span></th></tr>'
    for alternative in problem.alternatives:
        yield _row(alternative, alternative.name == problem.decision)
    yield "</tbody>"


def _row(alternative: AlternativeReport, chosen: bool) -> str:
    kind = (
        "chosen"
        if chosen
        else {"disqualified": "disqualified", "measured": ""}.get(alternative.status, "aside")
    )
    spread = f"± {duration(alternative.spread)}" if alternative.spread is not None else ""
    trials = str(alternative.trials) if alternative.trials else ""
    numbers = (duration(alternative.seconds), spread, trials, ratio(alternative.speedup))
    cells = "".join(f'<td class="number">{escape(number)}</td>' for number in numbers)
    mark = "*" if chosen else ""
    name, status = escape(alternative.name), escape(status_text(alternative))
    return f'<tr class="{kind}"><td>{mark}</td><td>{name}</td>{cells}<td>{status}</td></tr>'


def _leaf(node: Node) -> Iterator[str]:
    yield from _node_line(node, aside=False)
    yield f'<span class="aside">{escape(" ".join(node_facts(node)))}</span></li>'


def _node_line(node: Node, aside: bool) -> Iterator[str]:
    kind = "aside" if aside else "chosen" if node.settled else "unsettled"
    yield f"<li>{escape(node.selector)} {escape(node.problem)} → "
    yield f'<span class="{kind}">{escape(node_state(node))}</span>'


def _node(node: Node, aside: bool) -> Iterator[str]:
    yield from _node_line(node, aside)
    if node.branches:
        yield "<ul>"
        for branch in node.branches:
            second = aside or (node.settled and not branch.chosen)
            kind = "aside" if second else "chosen" if branch.chosen else ""
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
