"""How a script that bestof times talks to the command that started it."""

from __future__ import annotations

import errno
import json
import os
from typing import Any


class Channel:
    """Two descriptors: the script reads orders, and writes reports.

    A script may close descriptors that it does not know, and open files that get their numbers. So
    each exchange first looks whether both are still the same, and writes nothing if they are not.

    command: the command that started the script, for messages.
    """

    def __init__(self, command: str, orders: int, reports: int) -> None:
        self._command = command
        self._orders, self._reports = orders, reports
        self._identities = self._identities_now()

    def exchange(self, report: dict[str, Any]) -> float:
        """Send a report. Wait for the order: how many seconds the next turn takes at least.

        Raises SystemExit if the script has closed the descriptors. Ends the process if the command
        has ended.
        """
        try:
            if self._identities_now() != self._identities:
                raise OSError(errno.EBADF, "other files have their numbers")
            os.write(self._reports, (json.dumps(report) + "\n").encode())
            order = os.read(self._orders, 64)
        except OSError as error:
            raise SystemExit(
                f"it has closed the descriptors by which {self._command} times its steps "
                f"({error.strerror}); descriptors that others opened must stay open"
            ) from error
        if not order:
            os._exit(1)  # the command has ended
        return float(order)

    def _identities_now(self) -> list[tuple[int, int]]:
        found = map(os.fstat, (self._orders, self._reports))
        return [(one.st_dev, one.st_ino) for one in found]
