"""`bestof store explain`: why a decision was made, as far as its evidence shows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from time import time

from bestof.cli.options import add_json, add_limit, limit_of
from bestof.cli.store_action import Action
from bestof.errors import StoreError
from bestof.selection.reports.explanation import Explanation, explain
from bestof.selection.reports.report_builder import store_report
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.protocol import Store
from bestof.view import print_report
from bestof.view.printable import printable, printable_json
from bestof.view.quantity import age, plural
from bestof.view.words import not_shown


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "selector", metavar="SELECTOR", help="its name, as `bestof store show` prints it"
    )
    parser.add_argument(
        "problem", nargs="?", metavar="PROBLEM", help="only this problem, as `show` prints it"
    )
    add_limit(parser)
    add_json(parser, "JSON")


def _explain(store: Store, options: argparse.Namespace) -> int:
    most = limit_of(options)
    found = explain(*store.contents(), options.selector, options.problem)
    if not found:
        what = (
            options.selector
            if options.problem is None
            else f"{options.selector}, problem {options.problem}"
        )
        raise StoreError(
            f"{store.url} holds nothing on {printable(what)}; "
            "`bestof store show` lists what it holds"
        )
    if options.json:
        text = json.dumps([_dict(one) for one in found], indent=2, ensure_ascii=False)
        print(printable_json(text))
        return 0
    now = time()
    hosts = groupby(
        sorted(found[:most], key=lambda one: one.record.host), key=lambda one: one.record.host
    )
    for number, (host, explanations) in enumerate(hosts):
        print(f"{'' if number == 0 else chr(10)}host: {printable(host)}")
        _print_host(list(explanations), now)
    if most is not None and len(found) > most:
        print(not_shown(plural(len(found) - most, "problem")))
    return 0


def _print_host(explanations: Sequence[Explanation], now: float) -> None:
    shown = MemoryStore()
    for one in explanations:
        record = one.record
        when = age(now - record.updated)
        when = when if when == "just now" else f"{when} ago"
        selector, problem = printable(record.selector), printable(record.problem)
        print(f"{selector} {problem} ({when}): {printable(one.why)}")
        shown.save(record)
    print()
    print_report(store_report(shown), whole=True)


def _dict(one: Explanation) -> dict[str, object]:
    evidence = [{**asdict(item), "seconds": item.seconds} for item in one.record.evidence]
    return {**asdict(one.record), "evidence": evidence, "pinned": one.pinned, "why": one.why}


EXPLAIN = Action(
    "explain",
    "show why: evidence, host, time, the rule, and choices inside",
    _arguments,
    _explain,
    "'convolution forward'",
)
