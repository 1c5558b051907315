"""The tree of decisions: which problems were met inside which alternative."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bestof.errors import InvalidArgument
from bestof.selection.reports.report import AlternativeReport, ProblemReport, Report

Key = tuple[str, str]

_DEEPEST = 100  # levels of problems inside each other, which are drawn by recursion


@dataclass(frozen=True, slots=True)
class Branch:
    """One alternative of a node, and the problems that were met inside it."""

    alternative: AlternativeReport
    chosen: bool
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One problem of one selector.

    `shown` says where its branches are: `here`; `above`, if the problem is met in several places
    and shown in the first one; `cycle`, if it is met inside itself; or `absent`, if the report does
    not contain it. `source` says where the decision comes from, and `noisy`
    whether another alternative may be faster, as in the report.
    """

    selector: str
    problem: str
    shown: Literal["here", "above", "cycle", "absent"]
    settled: bool
    decision: str | None
    branches: tuple[Branch, ...] = ()
    source: str | None = None
    noisy: bool = False

    @property
    def leaf(self) -> bool:
        """Whether no problem was met inside any of its alternatives."""
        return not any(branch.nodes for branch in self.branches)


def decision_trees(report: Report) -> tuple[Node, ...]:
    """Return the trees of all problems of the selectors that nest, from the outermost.

    A selector nests if one of its problems contains others, or was met inside another one. Its
    other problems are trees of one node. A problem with only one alternative makes no trial, so
    nothing is known of what is inside. Selectors that contain others come before those that were
    met inside. Raises InvalidArgument if more than 100 problems are inside each other.
    """
    problems = {
        (one.selector, problem.problem): problem
        for one in report.selectors
        for problem in one.problems
    }
    holders = [key for key, problem in problems.items() if any(_children(problem))]
    inner = {child for key in holders for child in _children(problems[key])}
    outer = [key for key in problems if key not in inner]
    holding, held = {selector for selector, _ in holders}, {selector for selector, _ in inner}
    # If all problems of a cycle are inner ones, the first one replaces the missing root.
    order = [
        *(key for key in outer if key[0] in holding),
        *holders,
        *(key for key in outer if key[0] in held),
    ]
    placed: set[Key] = set()
    return tuple(_node(key, problems, placed, frozenset()) for key in order if key not in placed)


def _children(problem: ProblemReport) -> Iterator[Key]:
    for alternative in problem.alternatives:
        yield from alternative.children


def _node(
    key: Key, problems: dict[Key, ProblemReport], placed: set[Key], path: frozenset[Key]
) -> Node:
    problem = problems.get(key)
    if problem is None:
        return Node(*key, shown="absent", settled=False, decision=None)
    if key in placed:
        shown: Literal["above", "cycle"] = "cycle" if key in path else "above"
        return Node(
            *key,
            shown=shown,
            settled=problem.settled,
            decision=problem.decision,
            noisy=problem.noisy,
        )
    if len(path) >= _DEEPEST:
        raise InvalidArgument(f"more than {_DEEPEST} problems are nested inside each other")
    placed.add(key)
    # The chosen alternative comes first, so problems that it shares with others are shown below it.
    order = sorted(
        range(len(problem.alternatives)),
        key=lambda i: problem.alternatives[i].name != problem.decision,
    )
    branches: dict[int, Branch] = {}
    for index in order:
        alternative = problem.alternatives[index]
        nodes = tuple(
            _node((selector, inner), problems, placed, path | {key})
            for selector, inner in dict.fromkeys(alternative.children)
        )
        branches[index] = Branch(alternative, alternative.name == problem.decision, nodes)
    return Node(
        *key,
        shown="here",
        settled=problem.settled,
        decision=problem.decision,
        branches=tuple(branches[index] for index in order),
        source=problem.source,
        noisy=problem.noisy,
    )
