"""`bestof run`: run an unchanged Python program in this process, with tuning."""

from __future__ import annotations

import argparse
import atexit
import logging
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter, time

from bestof import selection
from bestof.accuracy import ACCURACIES, Accuracy
from bestof.cli.after_import import after_import
from bestof.cli.beside_times import BesideTimes
from bestof.cli.course import course
from bestof.cli.kept import named
from bestof.cli.lock_options import LockOptions, add_lock_options
from bestof.cli.options import parser_of_script
from bestof.cli.report_file import ReportFile
from bestof.cli.script import find_module, find_script, split_arguments
from bestof.cli.summary import summary_of
from bestof.configuration import Configuration, parse_configuration
from bestof.distribution import VERSION
from bestof.errors import BestofError, InvalidArgument
from bestof.recipe.file import read_recipe
from bestof.recipe.settings import Settings
from bestof.selection.identity.host import host
from bestof.selection.reports.report import Run
from bestof.selection.reports.window_text import window_text
from bestof.selection.state.lock import current_lock

_EPILOG = """\
Everything after the script belongs to the script, which cannot tell the
difference: its output, exit status, errors and signals are those of
`python script.py`. PyTorch is tuned as soon as the script imports it, and so is
every BestOf of the script. At the end a summary goes to the standard error
output, also when the script fails; it is lost where the script ends by os._exit
or exec, or is killed.

Processes that the script starts anew (subprocess, spawn) are not tuned; those
that it forks keep what was decided before the fork.

--store and --policy take precedence over the environment, and --accuracy over
what the script enables. A script that calls enable or set_config replaces
--config.

  bestof run train.py --epochs 3
  bestof run --report run.html --beside 4 train.py
  bestof run --store postgresql://host/decisions -m package.train"""


def call(argv: Sequence[str]) -> Callable[[], int]:
    """Parse, and do all that can fail. Return a function that runs the program."""
    own, module, rest = split_arguments(argv, _VALUED)
    options = make_parser().parse_args(own)
    if not rest:
        raise InvalidArgument("nothing to run; usage: bestof run [options] script.py [arguments]")
    script = find_module(rest[0], rest[1:]) if module else find_script(rest[0], rest[1:])
    configuration = None if options.config is None else parse_configuration(options.config)
    if options.locked is None and configuration is not None:
        options.locked = configuration.locked
    locks = LockOptions.of(options)
    if options.policy is not None:
        selection.use_policy(selection.parse_policy(options.policy))
    if options.store is not None:
        selection.use_store(named(options.store))
    if options.beside is not None and options.beside < 2:
        raise InvalidArgument(
            f"--beside: expected a number of steps, 2 or more; got {options.beside}"
        )
    if options.verbose:
        _tell_all()
    report = None if options.report is None else ReportFile.at(options.report)
    told: list[str] = []  # lines behind the summary
    if options.recipe is None:
        tune = partial(_tune_torch, configuration, options.accuracy)
    elif options.config is not None or options.accuracy is not None:
        raise InvalidArgument("--recipe sets what --config and --accuracy set; pass one of them")
    else:
        recipe = read_recipe(Path(options.recipe))
        tune = partial(_apply, recipe.settings)
        told.append(f"  the recipe {options.recipe} sets {recipe.chosen() or 'nothing'}")
    beside = None if options.beside is None else BesideTimes(options.beside)
    tuned = _TunedRun(script.name, tune, report, locks, told, beside)
    run = partial(script.run, tuned.prepare)
    return partial(locks.status_of, run) if locks.strict else run


# The options with a value. They are needed to find the script after them.
_VALUED = (
    *("--report", "--store", "--policy", "--accuracy", "--config", "--recipe"),
    *("--locked", "--write-lock", "--beside"),
)


def _tell_all() -> None:
    """Write what the logger of bestof says to the standard error output."""
    handler = logging.StreamHandler()
    form = "bestof %(asctime)s.%(msecs)03d %(message)s"
    handler.setFormatter(logging.Formatter(form, "%H:%M:%S"))
    logger = logging.getLogger("bestof")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False  # the program may have handlers of its own


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of_script("run", "Run a Python program, unchanged, with tuning on.", _EPILOG)
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="write what was measured and chosen to FILE.json|.html|.txt",
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help="where decisions are kept: PATH, postgresql://..., memory:, off",
    )
    parser.add_argument(
        "--policy",
        metavar="TEXT",
        help="how to search: race, rounds:rounds=5, window:START-STOP, "
        "fixed:NAME (selectors without NAME race)",
    )
    parser.add_argument(
        "--accuracy",
        metavar="LEVEL",
        choices=ACCURACIES,
        help="what PyTorch's convolutions may become: exact, float32 (default), relaxed",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="what is tuned, as JSON; see docs/whole_process.md"
    )
    parser.add_argument("--recipe", metavar="FILE", help="apply what `bestof tune` has found")
    parser.add_argument(
        "--verbose", action="store_true", help="tell each trial, decision and drift as it happens"
    )
    parser.add_argument(
        "--beside",
        metavar="N",
        type=int,
        help="run one of N training steps by PyTorch alone, and compare the times",
    )
    add_lock_options(parser)
    return parser


def _note_modules_and(tune: Callable[[], None]) -> None:
    with suppress(Exception):  # the program must run; only names of modules are missing then
        from bestof.torch.dispatch import met_modules  # noqa: PLC0415 - torch is imported

        met_modules.MET_MODULES.start()
    tune()


def _apply(settings: Settings) -> None:
    try:
        from bestof.recipe.apply import apply  # noqa: PLC0415 - the program has imported torch

        apply(settings)
    except Exception as error:  # the program must run even if bestof fails
        print(f"bestof: no recipe is applied: {type(error).__name__}: {error}", file=sys.stderr)


def _tune_torch(configuration: Configuration | None, accuracy: Accuracy | None) -> None:
    try:
        import bestof.torch as integration  # noqa: PLC0415 - the program has imported torch

        if configuration is not None:
            integration.set_config(configuration)
        elif accuracy is None:
            integration.enable()
        else:
            integration.enable({"kernel": {"accuracy": accuracy}})
        if accuracy is not None:
            # The program may call `enable` too. The order must hold against its accuracy.
            from bestof.torch.enable import order_accuracy  # noqa: PLC0415 - as above

            order_accuracy(accuracy)
    except Exception as error:  # the program must run even if bestof fails
        print(f"bestof: PyTorch is not tuned: {type(error).__name__}: {error}", file=sys.stderr)
        lock = current_lock()
        if lock is not None:  # `--strict` must not take it for success
            lock.missing["PyTorch", "every operation"] = "it is not tuned, as said above"


def _processor() -> str:
    parts = host().split("; ")
    return f"{parts[0]}, {parts[2]}" if len(parts) > 2 else parts[0]


def _versions() -> tuple[str, ...]:
    torch = sys.modules.get("torch")
    own = (f"bestof {VERSION}", f"Python {platform.python_version()}")
    return own if torch is None else (*own, f"torch {getattr(torch, '__version__', '')}")


def _tells() -> bool:
    """Return whether this process prints the summary. Of ranks under torchrun, only rank 0 does."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0"


@dataclass(slots=True)
class _TunedRun:
    """A run of a program: what tunes it, and what its summary tells.

    told: lines behind the summary. process, began: the process and the time of `prepare`.
    """

    name: str
    tune: Callable[[], None]
    report: ReportFile | None
    locks: LockOptions
    told: list[str]
    beside: BesideTimes | None
    process: int = 0
    began: float = 0.0

    def prepare(self) -> None:
        """Have the program tuned once it imports PyTorch, and the summary told at its end."""
        self.process, self.began = os.getpid(), perf_counter()
        # Handlers run last in, first out. So those of the program and its imports run before the
        # summary.
        atexit.register(self._finish)
        after_import("torch", self._begin)

    def _begin(self) -> None:
        _note_modules_and(self.tune)
        if self.beside is not None:
            self.beside.start()

    def _finish(self) -> None:
        if not _tells():
            return
        if os.getpid() != self.process:
            return  # this is a fork of the program
        # Streams may be closed, without a reader, or None. The interpreter itself reports that.
        with suppress(OSError, ValueError, AttributeError):
            # Both streams often go to one place; the summary must come after the program's last
            # output.
            sys.stdout.flush()
        try:
            told = [*self.told, *([] if self.beside is None else self.beside.lines())]
            text = "\n".join([*self._summary(), *told])
        except BestofError as error:
            text = f"bestof: there is no summary: {error}"
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def _summary(self) -> list[str]:
        seconds = perf_counter() - self.began
        steps, start = course(self.began), time() - seconds
        run = Run(self.name, seconds, start, _processor(), _versions(), steps)
        report = selection.report_all()
        report = replace(report, run=replace(run, window=window_text(report)))
        lines, store = summary_of(report)
        loaders = sys.modules.get("bestof.torch.process.data_loading.interception")
        if loaders is not None:
            lines.extend(f"  {line}" for line in loaders.data_loading_lines())
        layouts = sys.modules.get("bestof.torch.process.layout.interception")
        if layouts is not None:
            lines.extend(f"  {line}" for line in layouts.layout_lines())
        lines.extend(f"  {line}" for line in self.locks.lines(store))
        if self.report is not None:
            try:
                self.report.write(report)
                lines.append(f"  the report is in {self.report.path}")
            except (BestofError, OSError) as error:
                lines.append(f"  the report was not written to {self.report.path}: {error}")
        return lines
