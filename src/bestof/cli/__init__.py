"""The command `bestof`. Each subcommand is one module, which parses its arguments and calls bestof.

The exit status is 0 for success, 1 if what was run failed, 2 for wrong usage, and 130 for an
interrupt.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module

from bestof.cli.command import Command, Subcommand
from bestof.cli.missing import advice
from bestof.cli.parser import Parser
from bestof.cli.termination import INTERRUPTED
from bestof.distribution import VERSION
from bestof.errors import BestofError, InvalidArgument
from bestof.view.printable import printable

# A subcommand's module is imported when it is called, so `bestof --help` reads neither the engine
# nor rich nor torch.
COMMANDS = (
    Command("run", "bestof.cli.run", "run a Python program, unchanged, with tuning on"),
    Command("tune", "bestof.cli.tune", "find the settings that make a script's step faster"),
    Command("scale", "bestof.cli.scale", "find how many ranks and threads train fastest"),
    Command("pinned", "bestof.cli.pinned", "run a script on the processors of its rank"),
    Command("report", "bestof.cli.report", "show what was measured and chosen"),
    Command(
        "store",
        "bestof.cli.store",
        "show and change the kept decisions: show, explain, pin, export, merge",
    ),
    Command("profile", "bestof.cli.profile", "show where the time of a PyTorch program goes"),
    Command("project", "bestof.cli.project", "show how fast a profiled step could be"),
    Command("compare", "bestof.cli.compare", "show what differs between two profiles"),
    Command("doctor", "bestof.cli.doctor", "find the traps that slow this machine or a program"),
    Command(
        "serve-check", "bestof.cli.serve_check", "show which installed engine runs a model fastest"
    ),
    Command("bench", "bestof.cli.bench", "measure this machine"),
    Command("completion", "bestof.cli.completion", "complete commands in bash, zsh or fish"),
)

_EPILOG = """\
  bestof run train.py --epochs 3
  bestof report

`bestof COMMAND --help` tells more. \
Exit status: 0 success, 1 failure of what was run, 2 wrong usage, 130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status.

    `argv` does not contain the name of the program. None stands for the arguments of the process.
    Wrong usage raises SystemExit(2), as argparse does. An exception of a program under `bestof run`
    passes through.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = _find(arguments[0]) if arguments else None
    if command is None:
        return _without_command(arguments)
    is_strict = getattr(sys.stdout, "errors", None) == "strict"
    if is_strict:  # tables and names may have what the terminal's encoding lacks
        _encode_by("backslashreplace")
    try:
        subcommand: Subcommand = import_module(command.module)
        outcome = subcommand.call(arguments[1:])
    except ImportError as error:
        told = advice(error, _named(arguments))
        if told is None:
            raise
        print(f"bestof: {told}", file=sys.stderr)
        return 1
    except BestofError as error:
        print(f"bestof: {_one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgument) else 1
    except KeyboardInterrupt:  # for example while torch is imported
        print("bestof: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the table has closed the pipe, as in `bestof report | head`.
        sys.stdout = (
            None  # None is documented to mean "no stream"; it avoids a failing flush at exit
        )
        return 1
    if isinstance(outcome, int):
        return outcome
    # A program runs outside of the `try` above: its errors are its own, even if they are
    # BestofErrors. So is its output.
    if is_strict:
        _encode_by("strict")
    return outcome()


def _encode_by(errors: str) -> None:
    """Have the standard output write by this rule what its encoding lacks, if it is a text file."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stdout.reconfigure(errors=errors)  # type: ignore[union-attr]  # usually a TextIOWrapper


def _find(name: str) -> Command | None:
    return next((command for command in COMMANDS if command.name == name), None)


def _without_command(arguments: list[str]) -> int:
    width = max(len(command.name) for command in COMMANDS)
    rows = (f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS)
    parser = Parser(
        prog="bestof",
        usage="bestof [-h] [--version] COMMAND ...",
        description="Picks, while a program runs, the fastest of several implementations "
        "for every problem size.",
        epilog="\n".join(["commands:", *rows, "", _EPILOG]),
    )
    parser.add_argument("--version", action="version", version=f"bestof {VERSION}")
    _, rest = parser.parse_known_args(arguments)
    names = ", ".join(command.name for command in COMMANDS)
    if rest:
        close = get_close_matches(rest[0], [command.name for command in COMMANDS])
        asked = f"did you mean {close[0]!r}? The" if close else "the"
        parser.error(f"there is no command {rest[0]!r}; {asked} commands are {names}")
    parser.error(f"a command is missing; the commands are {names}")


def _named(arguments: list[str]) -> str:
    """Return the command with its subcommand: the words before the first option, at most two."""
    return " ".join(arguments[: 2 if arguments[0] in ("bench", "store") else 1])


def _one_line(error: BestofError) -> str:
    return printable(" ".join(str(error).split()), None) or type(error).__name__
