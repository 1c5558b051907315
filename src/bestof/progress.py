"""Shows how far something slow is, as a bar on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from time import monotonic

Progress = Callable[[str, int, int], object]
"""Called with a text on the current step, its number, and the number of steps; 0 if unknown."""


def _silent(_text: str, _step: int, _steps: int) -> None:
    """Report no progress."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a bar on the standard error, if that is a terminal and rich is installed."""
    if find_spec("rich") is None or not sys.stderr.isatty():
        yield _silent
        return
    from rich import progress  # noqa: PLC0415  rich is optional, and slow to import
    from rich.console import Console  # noqa: PLC0415  as above

    with progress.Progress(
        progress.SpinnerColumn(),
        progress.BarColumn(bar_width=28),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # results in a file or a pipe stay there
    ) as bar:
        task = bar.add_task("", total=1)

        def tell(text: str, step: int, steps: int) -> None:
            bar.update(task, description=text, completed=step, total=steps or None)

        yield tell


@contextmanager
def under_way(text: str) -> Iterator[None]:
    """Show as `progress_bar` does that something goes on, and for how long."""
    with progress_bar() as progress:
        progress(text, 0, 0)
        yield


@contextmanager
def late_progress_bar(after: float) -> Iterator[Progress]:
    """Show a bar, but only for what takes longer than `after` seconds."""
    began = monotonic()
    bar: list[Progress] = []
    with ExitStack() as stack:

        def tell(text: str, step: int, steps: int) -> None:
            if not bar and monotonic() - began >= after:
                bar.append(stack.enter_context(progress_bar()))
            for one in bar:
                one(text, step, steps)

        yield tell
