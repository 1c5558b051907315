"""What the parsers of several commands have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from bestof.cli.parser import Parser
from bestof.errors import InvalidArgument
from bestof.whole_file import check_replaceable

PROBLEMS_SHOWN = 1000  # a table of 100,000 took 35 s to draw, and no one reads it


def parser_of(command: str, description: str, epilog: str, **more: Any) -> argparse.ArgumentParser:
    """Return the parser of `bestof COMMAND`."""
    return Parser(prog=f"bestof {command}", description=description, epilog=epilog, **more)


def parser_of_script(
    command: str, description: str, epilog: str, *, or_else: str = ""
) -> argparse.ArgumentParser:
    """Return the parser of a command that takes a script or, by `-m`, a module.

    or_else: the arguments of another use of the command, for the usage.
    """
    usage = f"bestof {command} [options] (script.py | FOLDER | -m MODULE) [arguments]"
    if or_else:
        usage += f"\n       bestof {command} {or_else}"
    parser = parser_of(command, description, epilog, usage=usage, allow_abbrev=False)
    parser.add_argument(
        "-m",
        metavar="MODULE",
        help="in place of a script: a module or package, as `python -m` runs it",
    )
    return parser


def tell(line: str) -> None:
    """Print how far a command is, where it does not mix with its results."""
    print(line, file=sys.stderr, flush=True)


def seconds(text: str) -> float:
    """Return a finite number of seconds, at least 0; for `type` of an option."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(
            f"expected a finite number of seconds, at least 0; got {text!r}"
        )
    return number


def add_number(
    parser: argparse.ArgumentParser,
    name: str,
    default: float,
    what: str,
    kind: Callable[[str], float] = int,
) -> None:
    """Add an option for a number: N, or S if it is a number of seconds."""
    parser.add_argument(
        name,
        type=kind,
        default=default,
        metavar="N" if kind is int else "S",
        help=f"{what} (default: %(default)s)",
    )


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Add the option for the length of the tables."""
    add_number(parser, "--rows", 15, "rows of a table")


def add_limit(parser: argparse.ArgumentParser) -> None:
    """Add the option for the number of problems that tables show; see `limit_of`."""
    parser.add_argument(
        "--limit",
        metavar="N",
        type=int,
        default=PROBLEMS_SHOWN,
        help="show at most N problems; 0: all (default: %(default)s)",
    )


def limit_of(options: argparse.Namespace) -> int | None:
    """Return the number of problems to show, or None for all; InvalidArgument below 0."""
    if options.limit < 0:
        raise InvalidArgument(f"--limit: expected 0 or more; got {options.limit}")
    return options.limit or None


def add_json(parser: Any, what: str = "JSON, times in seconds") -> None:
    """Add the option for output as JSON, to a parser or a group of options."""
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def add_passes(parser: argparse.ArgumentParser) -> None:
    """Add the option for the passes of a convolution; see `passes_of`."""
    parser.add_argument(
        "--passes",
        metavar="LIST",
        help="some of forward,input-gradient,weight-gradient (default: all)",
    )


def passes_of(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the passes that `--passes` names; InvalidArgument for one that is not known."""
    names = tuple(name.strip().replace("-", " ") for name in text.split(","))
    for name in names:
        if name not in known:
            listed = ", ".join(one.replace(" ", "-") for one in known)
            raise InvalidArgument(
                f"--passes: there is no pass {name.replace(' ', '-')!r}; take some of {listed}"
            )
    return names


def numbers_of(text: str, option: str, least: int = 1) -> list[int]:
    """Return the numbers of a list such as 1,2, none below `least`.

    Raise InvalidArgument for other text.
    """
    try:
        numbers = [int(one) for one in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least:
        kind = "positive numbers" if least == 1 else f"numbers from {least} on"
        raise InvalidArgument(f"{option}: expected {kind} such as 1,2; got {text!r}")
    return numbers


def check_writable(path: str, what: str = "") -> None:
    """Raise InvalidArgument for a file that cannot be written; leave it as it is.

    This comes before the program runs, so that hours of work do not end in a spelling mistake.
    `what`: such as "a report", for the message.
    """
    try:
        check_replaceable(path)
    except OSError as error:
        reason = error.strerror or error
        raise InvalidArgument(f"cannot write {what and what + ' '}to {path!r}: {reason}") from error
