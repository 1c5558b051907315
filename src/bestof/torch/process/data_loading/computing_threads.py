"""Sets the number of computing threads for the time of an epoch."""

from __future__ import annotations

import torch


class ComputingThreads:
    """Sets PyTorch's threads. `restore` puts the old number back, unless the program has changed
    it."""

    def __init__(self) -> None:
        self._before: int | None = None
        self._set: int | None = None

    def use(self, threads: int) -> None:
        """Compute with this many threads until `restore`."""
        present = torch.get_num_threads()
        if self._before is None:
            self._before = present
        elif present != self._set:
            return  # the program has set a number itself
        if present != threads:
            torch.set_num_threads(threads)
        self._set = threads

    def restore(self) -> None:
        """Compute with as many threads as before `use`."""
        if self._before is not None and torch.get_num_threads() == self._set != self._before:
            torch.set_num_threads(self._before)
        self._before = None
