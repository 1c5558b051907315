"""`bestof run`: run an unchanged Python program in this process, with tuning."""

from __future__ import annotations

import argparse
import atexit
import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter, time

from bestof import selection
from bestof.accuracy import ACCURACIES
from bestof.cli.after_import import after_import
from bestof.cli.beside_times import BesideTimes
from bestof.cli.course import course
from bestof.cli.lock_options import add_lock_options
from bestof.cli.options import parser_of_script
from bestof.cli.process_tree import ProcessTree, tell_at_end
from bestof.cli.report_file import ReportFile
from bestof.cli.run_orders import UNTUNED, RunOrders
from bestof.cli.script import find_module, find_script, split_arguments
from bestof.cli.summary import summary_of
from bestof.distribution import VERSION
from bestof.errors import BestofError, InvalidArgument
from bestof.selection.identity.host import machine
from bestof.selection.reports.merged import merged
from bestof.selection.reports.report import Run
from bestof.selection.reports.window_text import window_text
from bestof_autoload import leave_process

_EPILOG = """\
Everything after the script belongs to the script, which cannot tell the
difference: its output, exit status, errors and signals are those of
`python script.py`. PyTorch is tuned as soon as the script imports it, and so is
every BestOf of the script. At the end a summary goes to the standard error
output, also when the script fails; it is lost where the script ends by os._exit
or exec, or is killed.

Python processes that the script starts anew (subprocess, spawn, torchrun) get
the same options by the environment, but for --beside and --recipe. They are
counted in the summary. BESTOF=off in the environment of one leaves it alone.
Those that it forks keep what was decided before the fork, and are not counted.

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
    if options.beside is not None and options.beside < 2:
        raise InvalidArgument(
            f"--beside: expected a number of steps, 2 or more; got {options.beside}"
        )
    report = None if options.report is None else ReportFile.at(options.report)
    beside = None if options.beside is None else BesideTimes(options.beside)
    orders = RunOrders.of(options)
    tuned = _TunedRun(script.name, orders, report, beside)
    run = partial(script.run, tuned.prepare)
    return partial(orders.locks.status_of, partial(tuned.whole, run)) if options.strict else run


def obey(text: str) -> None:
    """Tune this process as the `bestof run` of a process above it does.

    text: what the variable BESTOF says; see `RunOrders.environment`. PyTorch has been imported.
    """
    try:
        orders = RunOrders.of(make_parser().parse_args(shlex.split(text)[2:]))
    except BaseException:
        tell_at_end(partial(dict, missing=[UNTUNED]))  # `--strict` must not take it for success
        raise
    tell_at_end(orders.locks.told)
    orders.begin()


# The options with a value. They are needed to find the script after them.
_VALUED = (
    *("--report", "--store", "--policy", "--accuracy", "--config", "--recipe"),
    *("--locked", "--write-lock", "--beside"),
)


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
        help="how exact PyTorch's results stay: exact, float32 (default), relaxed",
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

    process, began: the process and the time of `prepare`. tree: what the processes that the program
    starts have told.
    """

    name: str
    orders: RunOrders
    report: ReportFile | None
    beside: BesideTimes | None
    process: int = 0
    began: float = 0.0
    tree: ProcessTree = field(init=False)

    def prepare(self) -> None:
        """Have the program tuned once it imports PyTorch, and the summary told at its end.

        The same holds for the processes that it starts; of these, this one tells.
        """
        self.process, self.began = os.getpid(), perf_counter()
        self.tree = ProcessTree(self.orders.locks.take)
        os.environ.update(self.orders.environment)
        leave_process()  # the variables are for the others
        # Handlers run last in, first out. So those of the program and its imports run before the
        # summary.
        atexit.register(self._finish)
        after_import("torch", self._begin)

    def whole(self, run: Callable[[], int]) -> int:
        """Return the status of a run, and take what the processes have told that it started."""
        try:
            return run()
        finally:
            self.tree.gather()

    def _begin(self) -> None:
        self.orders.begin()
        if self.beside is not None:
            self.beside.start()

    def _finish(self) -> None:
        if os.getpid() != self.process:
            return  # this is a fork of the program
        self.tree.gather(last=True)
        if not _tells():
            return
        # Streams may be closed, without a reader, or None. The interpreter itself reports that.
        with suppress(OSError, ValueError, AttributeError):
            # Both streams often go to one place; the summary must come after the program's last
            # output.
            sys.stdout.flush()
        try:
            told = [*self.orders.told, *([] if self.beside is None else self.beside.lines())]
            text = "\n".join([*self._summary(), *told])
        except BestofError as error:
            text = f"bestof: there is no summary: {error}"
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def _summary(self) -> list[str]:
        seconds = perf_counter() - self.began
        steps, start = course(self.began), time() - seconds
        name = f"{self.name}{self.tree.many()}"
        run = Run(name, seconds, start, machine(), _versions(), steps)
        report = selection.report_all()
        if self.tree.reports:
            report = merged([report, *self.tree.reports])
        report = replace(report, run=replace(run, window=window_text(report)))
        lines, store = summary_of(report)
        loaders = sys.modules.get("bestof.torch.process.data_loading.interception")
        if loaders is not None:
            lines.extend(f"  {line}" for line in loaders.data_loading_lines())
        layouts = sys.modules.get("bestof.torch.process.layout.interception")
        if layouts is not None:
            lines.extend(f"  {line}" for line in layouts.layout_lines())
        lines.extend(f"  {line}" for line in self.orders.locks.lines(store, report))
        if self.report is not None:
            try:
                self.report.write(report)
                lines.append(f"  the report is in {self.report.path}")
            except (BestofError, OSError) as error:
                lines.append(f"  the report was not written to {self.report.path}: {error}")
        return lines
