"""The loop of a peer's process: it reads an order a line, in JSON, and answers each with a line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable


def serve(make: Callable[[], object]) -> None:
    """Answer orders from the standard input until it ends.

    `make` makes the worker at the first order. Each public method of the worker is an order; it
    takes and returns what JSON can write. An order that raises is answered with the error, and the
    process goes on. The standard output carries the answers alone: what a library prints goes to
    the standard error.
    """
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        worker: object = None
        for line in sys.stdin:
            order = json.loads(line)
            name = order.pop("order")
            try:
                worker = worker or make()
                answer = {"answer": getattr(worker, name)(**order)}
            except Exception as error:  # a peer may fail in any way; the row of the table says how
                answer = {"error": _one_line(error)}
            print(json.dumps(answer), file=answers, flush=True)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
