"""Draws reports as text for a terminal, by rich."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from bestof.selection.duration import duration
from bestof.selection.reports.report import AlternativeReport, ProblemReport, Report, SelectorReport
from bestof.selection.store.record import Record
from bestof.view.printable import printable, printable_selector
from bestof.view.quantity import age, plural, ratio
from bestof.view.tree import Branch, Node, decision_trees
from bestof.view.words import (
    NOT_NESTED,
    UNTRIED,
    node_facts,
    node_state,
    not_shown,
    nothing,
    problem_notes,
    problem_state,
    selector_line,
    status_text,
    untried_names,
)

# A longer name is folded, so that a reason still fits into 80 columns.
_NAME_WIDTH = 24

# Wide enough for whole lines of most stores.
_PIPE_WIDTH = 240

_HEADINGS = ("time", "spread", "trials", "speed-up")


def text(report: Report, width: int | None, color: bool, most: int | None = None) -> str:
    """Return the report in lines of at most `width` columns (None: 100), with colours if
    `color`.

    most: as for `print_text`.
    """
    file = io.StringIO()
    console = Console(
        file=file,
        width=width or 100,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        force_jupyter=False,  # a notebook would show the text, and `file` stay empty
        _environ={},
    )
    print_text(report, console, most)
    lines = file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def terminal() -> Console:
    """Return a console for the standard output.

    If that is no terminal, and COLUMNS is not set, long lines are not cut.
    """
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console(highlight=False, force_jupyter=False, width=None if known else _PIPE_WIDTH)


def print_text(report: Report, console: Console, most: int | None = None) -> None:
    """Print the report to a console: a table for each selector, then the tree of decisions.

    most: of all problems and of all trees, so many are shown; None: all. Of each selector, an equal
    share is shown, at least one problem.
    """
    used = [selector for selector in report.selectors if selector.problems]
    if not used:
        console.print(nothing(report))
        return
    share = None if most is None else max(1, most // len(used))
    hidden = 0
    for number, selector in enumerate(used):
        if number:
            console.print()
        shown = replace(selector, problems=selector.problems[:share])
        console.print(_selector(printable_selector(shown), selector_line(selector), console.width))
        if left := len(selector.problems) - len(shown.problems):
            hidden += left
            console.print(Text(f"… {left:,} more", style="dim"))
    trees = decision_trees(report)
    if trees:
        console.print()
        console.print(_rule("decision tree"))
        for tree in trees[:most]:
            console.print(_tree(tree))
    _print_hidden(console, hidden, len(trees[most:]) if most is not None else 0)


def print_chosen(report: Report, console: Console, most: int | None = None) -> None:
    """Print the tree of decisions with the chosen alternatives only.

    most: so many trees are shown; None: all.
    """
    trees = decision_trees(report)
    if not trees:
        used = any(selector.problems for selector in report.selectors)
        console.print(NOT_NESTED if used else nothing(report), soft_wrap=True)
    for tree in trees[:most]:
        drawn = Tree(_chosen_label(tree), guide_style="dim")
        _grow_chosen(drawn, tree)
        console.print(drawn)
    _print_hidden(console, 0, len(trees[most:]) if most is not None else 0)


def _print_hidden(console: Console, problems: int, trees: int) -> None:
    counts = ((problems, "problem"), (trees, "tree"))
    told = " and ".join(plural(count, name) for count, name in counts if count)
    if told:
        console.print()
        console.print(Text(not_shown(told), style="bold"), soft_wrap=True)


def print_records(records: Sequence[Record], title: str, now: float, console: Console) -> None:
    """Print what a store holds: a line for each problem; `now` is seconds since the epoch."""
    console.print(Text(title, style="bold"), soft_wrap=True)
    if not records:
        return
    table = Table(box=None, pad_edge=False, expand=False, header_style="dim")
    for heading in ("selector", "problem", "decision"):
        table.add_column(heading, overflow="fold")
    table.add_column("samples", justify="right", no_wrap=True)
    table.add_column("age", justify="right", no_wrap=True)
    for record in records:
        samples = sum(len(one.samples) for one in record.evidence)
        decision = (
            Text(record.decision, style="green")
            if record.decision
            else Text("unsettled", style="yellow")
        )
        table.add_row(
            Text(record.selector),
            Text(record.problem),
            decision,
            Text(str(samples)),
            Text(age(now - record.updated)),
        )
    console.print(table)


def _rule(title: str) -> Rule:
    return Rule(Text(title, style="bold"), align="left", style="dim", characters="─")


def _selector(selector: SelectorReport, line: str, space: int) -> RenderableType:
    """Return the tables of a selector for a terminal of so many columns."""
    alternatives = [one for problem in selector.problems for one in problem.alternatives]
    rows = [_cells(one) for one in alternatives]
    # A column has the same width for all problems of the selector, so that times are aligned.
    name = min(_NAME_WIDTH, max([len("alternative"), *(len(one.name) for one in alternatives)]))
    widths = [
        max(len(heading), *(len(row[i]) for row in rows), 0) for i, heading in enumerate(_HEADINGS)
    ]
    # On a narrow terminal, names are folded and numbers are not cut.
    beside = sum(widths) + 2 * (len(widths) + 2) + 1 + len("measured")
    name = min(name, max(len("alternative"), space - beside))
    parts: list[RenderableType] = [
        _rule(selector.selector),
        Text(line, style="dim"),
        Text(),
        _columns(
            name, widths, [("", Text("alternative"), *_HEADINGS, Text("status"))], style="dim"
        ),
    ]
    for problem in selector.problems:
        parts.append(_problem(problem, name, widths))
    return Group(*parts)


def _problem(problem: ProblemReport, name: int, widths: Sequence[int]) -> RenderableType:
    state = "dim" if problem.settled else "bold yellow"
    heading = Text.assemble(
        (problem.problem, "bold"), "  ", (f"[{problem_state(problem)}]", state), overflow="fold"
    )
    tried = [one for one in problem.alternatives if one.status not in UNTRIED]
    rows = [
        (
            "*" if one.name == problem.decision else "",
            Text(one.name),
            *_cells(one),
            Text(status_text(one)),
        )
        for one in tried
    ]
    styles = [_style(one, one.name == problem.decision) for one in tried]
    untried = [_aside(f"{why}: {', '.join(them)}") for why, them in untried_names(problem).items()]
    notes = map(_aside, problem_notes(problem))
    return Group(heading, *notes, _columns(name, widths, rows, styles=styles), *untried)


def _aside(line: str) -> Padding:
    return Padding(Text(line, "dim", overflow="fold"), (0, 0, 0, 3))


def _columns(
    name: int,
    widths: Sequence[int],
    rows: Sequence[tuple[str | Text, ...]],
    style: str = "",
    styles: Sequence[str] | None = None,
) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(width=1, no_wrap=True)
    table.add_column(width=name, overflow="fold")
    for width in widths:
        table.add_column(width=width, justify="right", no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for index, row in enumerate(rows):
        table.add_row(*row, style=style if styles is None else styles[index])
    return table


def _cells(alternative: AlternativeReport) -> tuple[str, str, str, str]:
    spread = duration(alternative.spread)
    return (
        duration(alternative.seconds),
        f"± {spread}" if spread else "",
        str(alternative.trials) if alternative.trials else "",
        ratio(alternative.speedup),
    )


def _style(alternative: AlternativeReport, chosen: bool) -> str:
    if chosen:
        return "bold green"
    return {
        "disqualified": "red",
        "not tried": "dim",
        "pruned": "dim",
    }.get(alternative.status, "")


def _tree(node: Node) -> RenderableType:
    # A node without inner problems needs one line: its alternatives are in the tables above.
    tree = Tree(_chosen_label(node) if node.leaf else _node_label(node), guide_style="dim")
    if not node.leaf:
        _grow(tree, node)
    return Padding(tree, (0, 0, 0, 0))


def _grow(tree: Tree, node: Node, dim: bool = False) -> None:
    for branch in node.branches:
        # Before there is a decision, all alternatives look the same.
        aside = dim or (node.settled and not branch.chosen)
        twig = tree.add(_branch_label(branch, aside), guide_style="dim")
        for inner in branch.nodes:
            _grow(twig.add(_node_label(inner, aside), guide_style="dim"), inner, aside)


def _grow_chosen(tree: Tree, node: Node) -> None:
    for branch in node.branches:
        if branch.chosen or not node.settled:
            for inner in branch.nodes:
                _grow_chosen(tree.add(_chosen_label(inner), guide_style="dim"), inner)


def _chosen_label(node: Node) -> Text:
    label = _node_label(node)
    for fact in node_facts(node):
        label.append(f"  {printable(fact)}", "dim")
    return label


def _branch_label(branch: Branch, aside: bool) -> Text:
    style = "dim" if aside else "bold green" if branch.chosen else ""
    words = " ".join(_facts(branch))
    return Text(
        f"{'* ' if branch.chosen else ''}{printable(branch.alternative.name)}  {words}".rstrip(),
        style,
        overflow="fold",
    )


def _facts(branch: Branch) -> Iterator[str]:
    if branch.alternative.seconds is not None:
        yield duration(branch.alternative.seconds)
    if branch.alternative.status not in ("chosen", "measured"):
        yield branch.alternative.status


def _node_label(node: Node, aside: bool = False) -> Text:
    state = "dim" if aside else "green" if node.settled else "yellow"
    return Text.assemble(
        (printable(node.selector), "dim" if aside else "bold"),
        (f" {printable(node.problem)} → ", "dim" if aside else ""),
        (printable(node_state(node)), state),
        overflow="fold",
    )
