"""What an operation is. Each consumer asks it: eager calls, reports, benchmarks, tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple

from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.comparison import Finding
from bestof.torch.ops.row import P, Row


class Call(NamedTuple):
    """A call that bestof chooses for: its problem, and its tensors, some of which may be None."""

    problem: Any
    operands: tuple[Tensor | None, ...]


class Operation(ABC, Generic[P]):
    """One operator of PyTorch, and the implementations that it is chosen from.

    name: that of its selector: in stores, reports and BESTOF_FORCE.
    operator: the operator of PyTorch, such as `aten::avg_pool2d`.
    switch: the key of the section `kernel` in the configuration that turns it on and off, perhaps
        with others; None if it has none. `kernel.without` turns off single operations.
    rows: the implementations; PyTorch's own first, by the name "as is".
    """

    name: str
    operator: str
    switch: str | None = None
    rows: tuple[Row[P], ...]

    @abstractmethod
    def call(self, level: Accuracy, *arguments: Any) -> Call | None:
        """Return the problem and the tensors of a call; None if PyTorch answers it.

        The arguments are those of the operator; trailing ones may be missing. A problem has all
        that changes which row is the fastest, and `canonical()`, its text for the store.
        """

    @abstractmethod
    def compare(self, row: Row[P], problem: P, expected: Any, got: Any) -> Finding:
        """Return which of two results is wrong: of PyTorch's own kernel, and of a row."""

    def flops(self, _problem: P) -> float | None:
        """Return the multiplications and additions of a call; None if they tell nothing."""
        return None


Original = Callable[..., Any]
"""PyTorch's own kernel of the operator, called with the operator's arguments."""
