"""What is chosen for a step that PyTorch's operator or a native kernel runs."""

from __future__ import annotations

from typing import NamedTuple

import torch

ALTERNATIVES = PYTORCH, NATIVE = "pytorch", "native"


class RacedProblem(NamedTuple):
    """What is chosen for: an operation, its shapes and options as text, and the threads."""

    operation: str
    shapes: str
    threads: int

    @classmethod
    def of(cls, operation: str, shapes: str) -> RacedProblem:
        """Return the problem for the number of threads in use now."""
        return cls(operation, shapes, torch.get_num_threads())

    def canonical(self) -> str:
        """Return the text that identifies the problem in the store."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        return f"{self.operation} {self.shapes}"
