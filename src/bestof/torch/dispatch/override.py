"""Answers the calls of one operation, below autograd."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from bestof.accuracy import DEFAULT_ACCURACY, Accuracy
from bestof.configuration import Configuration
from bestof.errors import NoAlternative
from bestof.selection import Alternative, BestOf, unless_shared
from bestof.torch.depends import DEPENDS
from bestof.torch.dispatch.call_counts import CallCounts
from bestof.torch.dispatch.operation_verifier import OperationVerifier
from bestof.torch.dispatch.search import RACE, SEARCHES
from bestof.torch.modes import are_modes_on, without_modes
from bestof.torch.ops.operation import Operation
from bestof.torch.python_kernel import PythonKernel


class Override:
    """Answers one operator of PyTorch on the CPU by a row of its operation, while registered.

    PyTorch's own kernel answers what the operation does not choose for, and whatever its rows fail
    to answer.
    """

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation
        call = torch.library.get_kernel(operation.operator, "CPU").call_boxed
        self.original = partial(call, torch._C.DispatchKeySet(torch._C.DispatchKey.CPU))
        self._kernel = PythonKernel(operation.operator, self._answer)
        self._level: Accuracy = DEFAULT_ACCURACY
        self.calls: CallCounts[Any] = CallCounts()
        self.selector = BestOf(
            operation.name,
            [
                Alternative(
                    row.name,
                    partial(row.function, self.original),
                    DEPENDS,
                    supports=row.is_tried,
                    formerly=row.formerly,
                )
                for row in operation.rows
            ],
            lambda problem, *_: problem,
            check=OperationVerifier(operation, self.original),
            policy=unless_shared(RACE),
            max_searches=SEARCHES,
        )

    def configure(self, configuration: Configuration) -> None:
        """Put the override in, or take it out, as a configuration says."""
        self._level = configuration.accuracy
        switch = self.operation.switch
        wanted = switch is None or getattr(configuration, switch)
        if self.operation.name in configuration.without:
            wanted = False
        (self.register if wanted else self.remove)()

    def register(self) -> None:
        """Put the override in. Does nothing if it is in."""
        self._kernel.register()

    def remove(self) -> None:
        """Put PyTorch's own kernel back. Does nothing if it is in."""
        self._kernel.remove()

    def _answer(self, *arguments: Any) -> Any:
        if are_modes_on():
            return without_modes(self._answer, *arguments)
        call = self.operation.call(self._level, *arguments)
        if call is None:
            return self.original(*arguments)
        self.calls.count(call.problem)
        try:
            return self.selector(call.problem, *call.operands)
        except NoAlternative:  # for example, memory is short; the program gets PyTorch's own error
            return self.original(*arguments)
