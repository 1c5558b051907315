"""`bestof report`: what was measured and chosen, from the user's store or from a saved report."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Sequence

from bestof import selection
from bestof.cli.kept import kept
from bestof.cli.options import PROBLEMS_SHOWN, add_json, parser_of
from bestof.cli.report_file import ReportFile
from bestof.errors import InvalidArgument, StoreError
from bestof.selection.reports.report import Report, report_from_dict
from bestof.view import print_chosen, print_report, render
from bestof.view.overview import ROWS
from bestof.view.tree import decision_trees
from bestof.view.words import explained_words

_EPILOG = """\
Without FILE and --store: what this user's store holds.

  bestof report
  bestof report --all run.json
  bestof report --html run.html run.json"""


def call(argv: Sequence[str]) -> int:
    """Parse, read and print."""
    options = make_parser().parse_args(argv)
    if options.file is not None and options.store is not None:
        raise InvalidArgument("a report file and --store were both given; pass one of them")
    if options.explain_words:
        print(explained_words(shutil.get_terminal_size().columns))
        return 0
    most = options.limit
    if most is not None and most < 0:
        raise InvalidArgument(f"--limit: expected 0 or more; got {most}")
    page = None if options.html is None else ReportFile.at(_page_name(options.html))
    report = (
        _saved(options.file)
        if options.file is not None
        else selection.store_report(kept(options.store))
    )
    if page is not None:
        try:
            page.write(report)
        except OSError as error:
            raise StoreError(f"cannot write {page.path!r}: {error.strerror or error}") from error
        print(f"written to {page.path}")
    elif options.json:
        print(render(report, "json"))
    elif options.tree:
        print_chosen(report, PROBLEMS_SHOWN if most is None else most or None)
    elif options.all:
        print_report(report, PROBLEMS_SHOWN if most is None else most or None, whole=True)
    else:
        print_report(report, ROWS if most is None else most or None)
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of(
        "report",
        description="Show what was measured and chosen: a row for each layer or problem.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="a report that `bestof run --report FILE.json` wrote",
    )
    parser.add_argument("--store", metavar="URL", help="another store, such as sqlite:///PATH")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=int,
        help=f"show at most N problems; 0: all (default: {ROWS}, with --all {PROBLEMS_SHOWN})",
    )
    parser.add_argument(
        "--explain-words", action="store_true", help="explain the words of reports, and end"
    )
    form = parser.add_mutually_exclusive_group()
    add_json(form, "JSON")
    parser.add_argument(
        "--all", action="store_true", help="every alternative with its times, and what was left out"
    )
    form.add_argument("--tree", action="store_true", help="print only the tree of decisions")
    form.add_argument("--html", metavar="PAGE", help="write an HTML page to PAGE.html")
    return parser


def _page_name(text: str) -> str:
    """Return the name of the HTML file: `.html` is added to a name without an ending."""
    ending = os.path.splitext(text)[1].lower()
    if ending not in ("", ".html"):
        raise InvalidArgument(f"cannot write HTML to {text!r}: its name must end in .html")
    return text if ending else f"{text}.html"


def _saved(path: str) -> Report:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise InvalidArgument(
            f"cannot read {path!r}: {error.strerror or error}; "
            "`bestof run --report FILE.json` writes a report"
        ) from error
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path!r} is not a report: {error}; save one by `bestof run --report FILE.json`"
        ) from error
    try:
        report = report_from_dict(content)
        decision_trees(report)  # whether they can be drawn
        return report
    except InvalidArgument as error:
        raise StoreError(
            f"{path!r} is not a report: {error}; save one by `bestof run --report FILE.json`"
        ) from error
