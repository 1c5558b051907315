"""`bestof profile`: where the time of a PyTorch program goes."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TextIO

from bestof.cli.after_import import after_import
from bestof.cli.options import (
    add_json,
    add_number,
    add_rows,
    check_writable,
    parser_of_script,
)
from bestof.cli.profile_page import profile_page
from bestof.cli.profile_picture import check_picture, draw_profile
from bestof.cli.profile_tables import (
    DEFAULT_FIELDS,
    LOG_FIELDS,
    profile_content,
    profile_csv,
    profile_lines,
)
from bestof.cli.script import Script, find_module, find_script, split_arguments
from bestof.errors import BestofError, InvalidArgument, ProfileError
from bestof.profile import Profile, from_log, load_profile, read_log
from bestof.profile.breakdown import FIELDS
from bestof.profile.trace import write_trace
from bestof.whole_file import write_whole

if TYPE_CHECKING:
    from bestof.profile.recording.schedule import Schedule

_EPILOG = """\
Everything after the script belongs to the script. Its output stays as it is;
the tables go to the standard error output when it has ended, also when it
failed. The recording begins when the script imports torch and ends after
--steps steps of an optimizer, or calls of the model without gradients.

  bestof profile examples/train_vgg16.py --steps 6
  bestof profile --steps 20 --keep run.json --trace trace.json train.py
  bestof profile --show run.json --by module,direction --by implementation
  bestof profile --show run.json --report profile.html
  bestof profile --log verbose.log --json

Open a trace in https://ui.perfetto.dev. A breakdown can be taken by
{fields}."""

# The options with a value. They are needed to find the script after them.
_VALUED = (
    *("--steps", "--skip", "--keep", "--trace", "--picture", "--report", "--csv", "--by"),
    *("--rows", "--log", "--show"),
)
# The options that name an output file.
_FILES = ("keep", "trace", "picture", "report", "csv")


def call(argv: Sequence[str]) -> int | Callable[[], int]:
    """Parse the arguments. Print the tables of a log or a kept profile, or return a runner.

    The runner runs the program and prints its tables.
    """
    own, module, rest = split_arguments(argv, _VALUED)
    options = make_parser().parse_args(own)
    usual = DEFAULT_FIELDS if options.log is None else LOG_FIELDS
    fields = tuple(tuple(text.split(",")) for text in options.by) or usual
    for name in {name for by in fields for name in by} - FIELDS.keys():
        raise InvalidArgument(f"--by: there is no field {name!r}; take some of {', '.join(FIELDS)}")
    if options.steps < 0 or options.skip < 0 or options.rows < 1:
        raise InvalidArgument("--steps, --skip: expected 0 or more; --rows: expected 1 or more")
    sources = (options.log is not None) + (options.show is not None) + bool(rest)
    if sources != 1:
        raise InvalidArgument("name one of a script, --log FILE and --show FILE")
    check_picture(options.picture)
    tell = partial(_tell, options, fields)
    if not rest:
        kept = load_profile(options.show) if options.show else _of_log(options.log)
        tell(kept, sys.stdout)
        return 0
    for name in _FILES:
        if (path := getattr(options, name)) is not None:
            check_writable(path)
    script = find_module(rest[0], rest[1:]) if module else find_script(rest[0], rest[1:])
    return partial(script.run, partial(_prepare, script, options, tell))


def _of_log(path: str) -> Profile:
    return from_log(path, read_log(path))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of_script(
        "profile",
        "Show where the time of a PyTorch program goes.",
        _EPILOG.format(fields=", ".join(FIELDS)),
        or_else="[options] (--log FILE | --show FILE.json)",
    )
    add = parser.add_argument
    add("--log", metavar="FILE", help="read a log of verbose lines of oneDNN and MKL")
    add("--show", metavar="FILE", help="read a profile that --keep wrote")
    add_number(parser, "--steps", 10, "record N steps; 0: all")
    add_number(parser, "--skip", 0, "skip N steps first")
    add("--tuned", action="store_true", help="tune PyTorch as `bestof run` does")
    add("--dispatch", action="store_true", help="show why oneDNN refused implementations")
    add(
        "--by",
        action="append",
        default=[],
        metavar="FIELDS",
        help="break down by FIELD,...; may be repeated",
    )
    add_rows(parser)
    add("--keep", metavar="FILE", help="write the profile as JSON, for --show and `bestof compare`")
    add("--trace", metavar="FILE", help="write a Chrome trace, which Perfetto opens")
    add("--picture", metavar="FILE", help="draw where the time goes (png, svg or pdf)")
    add("--report", metavar="FILE", help="write everything as one HTML page")
    add("--csv", metavar="FILE", help="write the breakdowns as CSV")
    add_json(parser, "the breakdowns as JSON")
    return parser


def _prepare(
    script: Script, options: argparse.Namespace, tell: Callable[[Profile, TextIO], None]
) -> None:
    schedules: list[Schedule] = []
    # Handlers run in reverse order: those of the program and of its imports run before the tables.
    atexit.register(_finish, script.name, schedules, os.getpid(), tell)
    for name in _FILES:
        if getattr(options, name) is not None:
            # The program may change its directory.
            setattr(options, name, os.path.abspath(getattr(options, name)))
    after_import("torch", partial(_begin, script.name, options, schedules))


def _begin(title: str, options: argparse.Namespace, schedules: list[Schedule]) -> None:
    try:
        if options.tuned:
            import bestof.torch as integration  # noqa: PLC0415 - the program has imported torch

            integration.enable()
        from bestof.profile.recording.schedule import Schedule  # noqa: PLC0415 - as above

        schedule = Schedule(title, options.skip, options.steps, options.dispatch)
        schedule.start()
        schedules.append(schedule)
    except Exception as error:  # the program must run even if bestof fails
        print(f"bestof: nothing is recorded: {type(error).__name__}: {error}", file=sys.stderr)


def _finish(
    name: str, schedules: list[Schedule], process: int, tell: Callable[[Profile, TextIO], None]
) -> None:
    if os.getpid() != process:
        return  # this is a fork of the program
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    if not schedules and "torch" in sys.modules:
        return  # `_begin` has said why
    try:
        if not schedules:
            raise ProfileError(f"{name} did not import torch, so there is nothing to profile")
        found = schedules[0].stop()
        if found is None:
            raise ProfileError(
                f"{name} ended before --skip steps had passed, so nothing was recorded; "
                "pass a smaller --skip"
            )
    except BestofError as error:
        _complain(f"there is no profile: {error}")
        return
    try:
        tell(_with_peak(found), sys.stderr)
    except BestofError as error:
        _complain(str(error))


def _complain(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):
        print(f"bestof: {text}", file=sys.stderr)


def _with_peak(profile: Profile) -> Profile:
    from bestof.profile.peak import measure_peak  # noqa: PLC0415 - imports torch

    try:
        return replace(profile, peak=measure_peak())
    except Exception as error:  # such as missing memory: the profile must not be lost with it
        told = f"no peaks and no roofline: measuring them failed: {type(error).__name__}: {error}"
        return replace(profile, notes=(*profile.notes, told))


def _tell(
    options: argparse.Namespace,
    fields: Sequence[Sequence[str]],
    profile: Profile,
    stream: TextIO,
) -> None:
    """Print the tables and write the files. After a program, `stream` may be closed, or None.

    Raises ProfileError for the files that cannot be written, after the others were written.
    """
    if options.json:
        text = json.dumps(profile_content(profile, fields), indent=2)
    else:
        text = "\n".join(profile_lines(profile, fields, options.rows))
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError, AttributeError):
        if stream is sys.stdout:  # the tables are all that was asked for
            raise
    writers: dict[str, Callable[[str], object]] = {
        "keep": profile.save,
        "trace": partial(write_trace, profile),
        "picture": partial(draw_profile, profile),
        "report": partial(_write_page, profile),
        "csv": partial(_write_csv, profile, fields),
    }
    failures = []
    for name in _FILES:
        path = getattr(options, name)
        try:
            if path is not None:
                writers[name](path)
        except BestofError as error:
            failures.append(str(error))
        except (OSError, ValueError) as error:
            failures.append(f"cannot write to {path!r}: {error}")
    if failures:
        raise ProfileError("; ".join(failures))


def _write_csv(profile: Profile, fields: Sequence[Sequence[str]], path: str) -> None:
    write_whole(path, profile_csv(profile, fields))


def _write_page(profile: Profile, path: str) -> None:
    write_whole(path, profile_page(profile))
