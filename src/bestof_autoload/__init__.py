"""Tunes every process that imports PyTorch, if the environment variable BESTOF asks for it.

PyTorch calls `tune` at the end of `import torch`, by the entry point group `torch.backends`. This
package stands beside `bestof`, because a process that does not ask shall not import it: without the
variable, `tune` takes some microseconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

_OFF = ("", "0", "off")
_ON = ("1", "on")
_RUN = "bestof run"
_waits: list[Callable[[], object]] = []
_left: list[bool] = []  # not empty if something else tunes this process


def leave_process() -> None:
    """Do nothing in this process, whatever BESTOF says: `bestof run` tunes it."""
    _left.append(True)


def tune() -> None:
    """Enable bestof as BESTOF says: `on`, as `enable` does, or by a configuration in a JSON file.

    Below `bestof run`, the variable holds the options of that command.
    What goes wrong is told on the standard error output. The program runs on without bestof.
    """
    wanted = os.environ.get("BESTOF", "").strip()
    if wanted.lower() in _OFF or _left:
        return
    when_ready(lambda: _enable(wanted))


def when_ready(action: Callable[[], object]) -> None:
    """Call a function that uses `bestof.torch`: now, or at the end of its import.

    A program may import `bestof.torch` first, which then imports PyTorch.
    """
    spec = getattr(sys.modules.get("bestof.torch"), "__spec__", None)
    if getattr(spec, "_initializing", False):  # as `import` itself asks
        _waits.append(action)  # `bestof.torch` calls `resume` at its end
    else:
        action()


def resume() -> None:
    """Do what had to wait while `bestof.torch` was being imported."""
    while _waits:
        _waits.pop()()


def tell(line: str) -> None:
    """Write a line to the standard error output, if that can be written to.

    An error would make `import torch` fail.
    """
    with suppress(Exception):  # None, closed, without a reader, or of the program's own kind
        sys.stderr.write(f"{line}\n")


def _enable(wanted: str) -> None:
    try:
        if wanted.startswith(_RUN):
            from bestof.cli.run import obey  # noqa: PLC0415 - slow; only if it is wanted

            obey(wanted)
            return
        from bestof import torch as integration  # noqa: PLC0415 - slow; only if it is wanted

        if wanted.lower() in _ON:
            integration.enable()
        else:
            integration.set_config(wanted)
        if os.environ.get("BESTOF_SUMMARY", "").strip().lower() in _ON:
            from bestof.cli.process_tree import join  # noqa: PLC0415 - as above

            join()
    except (Exception, SystemExit) as error:  # `import torch` must not fail
        tell(
            f"bestof: PyTorch is not tuned, although BESTOF={wanted}: "
            f"{type(error).__name__}: {error}"
        )
