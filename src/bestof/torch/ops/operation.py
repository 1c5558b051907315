"""What an operation is. Each consumer asks it: eager calls, reports, benchmarks, tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeAlias

import torch
from torch import Tensor

from bestof.accuracy import Accuracy, allows
from bestof.configuration import Configuration
from bestof.selection import Race
from bestof.selection.state.journal import Entry
from bestof.torch.backends.device import CPU, Device
from bestof.torch.backends.shim import Shim
from bestof.torch.ops.combination import Combination
from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.dtypes import of_operands
from bestof.torch.ops.pytorch_kernel import Kernel, original_of
from bestof.torch.ops.row import P, Row
from bestof.torch.ops.search_settings import RACE

Operands: TypeAlias = tuple[Any, ...]
"""What the rows of an operation read: the tensors of a call in the order of its arguments, None
where one is absent, and behind them `Operation.others` operands of other types."""


class Call(NamedTuple):
    """A call that bestof chooses for: its problem, and its operands."""

    problem: Any
    operands: Operands


class Operation(ABC, Generic[P]):
    """One operation of PyTorch, and the implementations that it is chosen from.

    name: that of its selector: in stores, reports and BESTOF_FORCE.
    operator: the operator of PyTorch, such as `aten::avg_pool2d`. If there are several that share
        decisions, `operators` names them, and `call` is given the place of the operator before its
        arguments. If PyTorch has none, `operators` is empty: plans or programs ask the operation.
    switch: the key of the section `kernel` in the configuration that turns it on and off, perhaps
        with others; None if it has none. `kernel.without` turns off single operations.
    rows: the implementations; PyTorch's own first, by the name "as is".
    rule, least: calls with less work are PyTorch's. They never meet Python. The rules, and their
        units of work, are those of `native/torch/rules.h`.
    others: how many of the operands, the last ones, are no tensors.
    race: how a search compares the rows.
    patience: calls of a problem that take the decision of a neighbour; 0 without neighbours.
    part: whether the operation is one form of its operator. The override of the operator then asks
        for it; the operation has no kernel of its own.
    device: the kind of device that it runs on.
    """

    name: str
    operator: str
    switch: str | None = None
    rows: tuple[Row[P], ...]
    rule: str = "elements"
    least: float = 0.0
    others: int = 0
    race: Race = RACE
    patience: int = 0
    part: bool = False
    device: Device = CPU

    @property
    def label(self) -> str:
        """The name of the operation in summaries."""
        return self.name

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators of PyTorch that are answered."""
        return (self.operator,)

    def row(self, name: str) -> Row[P]:
        """Return the row of this name, which exists."""
        return next(one for one in self.rows if one.name == name)

    def take_rows(self, rows: tuple[Row[P], ...]) -> None:
        """Have these rows from now on; the first one stays."""
        self.rows = rows
        vars(self).pop("dtypes", None)

    @cached_property
    def dtypes(self) -> frozenset[torch.dtype]:
        """The dtypes of operands that rows name; PyTorch answers calls of others."""
        return of_operands(one for row in self.rows for one in row.dtypes or ())

    @abstractmethod
    def call(self, level: Accuracy, *arguments: Any) -> Call | None:
        """Return the problem and the operands of a call; None if PyTorch answers it.

        The arguments are those of the operator; trailing ones may be missing. The answer depends
        on nothing else than the arguments, the level and the number of threads, and on tensors by
        their dtypes, sizes and strides alone. A problem has all that changes which row is the
        fastest, and `canonical()`, its text for the store.
        """

    def arguments(self, operator: str, given: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: ARG002  # of several
        """Return the arguments of `call` for those of an operator; None if PyTorch answers it.

        C++ asks the same for eager calls, by the rule of the operation; plans ask here.
        given: all arguments by position. A plan asks with tensors of undefined numbers.
        """
        sizes = [one.numel() for one in given if isinstance(one, Tensor)]
        return given if max(sizes, default=0) >= self.least else None

    def finish(self, _call: Call, _arguments: tuple[Any, ...], results: Any) -> Any:
        """Return what the operator returns, from what a row has returned for a call.

        An operator that changes more than its results does it here, and not in its rows, which are
        run as often as it takes. Returns None if PyTorch's own kernel is to answer after all.
        """
        return results

    @abstractmethod
    def compare(
        self, row: Row[P], original: Kernel, args: tuple[Any, ...], expected: Any, got: Any
    ) -> Finding:
        """Return which of two results is wrong: of PyTorch's own kernel, and of a row.

        `args` are the problem and the operands. `original` computes in float64 if need be.
        """

    def combination(self, _args: tuple[Any, ...]) -> Combination | None:
        """Return a smaller call that tells whether a result of a call is right; None without one.

        `args` are the problem and the operands.
        """
        return None

    def replaced(self, args: tuple[Any, ...], tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """Return a problem and operands with random numbers in place of the tensors."""
        return (args[0], *tensors, *args[len(args) - self.others :])

    def tolerance(self, _row: Row[P], _problem: P, *_operands: Any) -> Tensor:
        """Return how far results of the same kernel, called from Python and C++, may be apart.

        The tensor broadcasts to each result. Rows with `compiled` need it.
        """
        raise NotImplementedError

    def original(self, kernels: Sequence[Any]) -> Any:
        """Return PyTorch's own kernels, as the rows take them.

        Here, the kernel of the operator, called with the arguments of `call`; None without one.
        """
        if not kernels:
            return None
        (kernel,) = kernels
        return original_of(self.operator, kernel)

    def neighbours(self) -> Callable[[Hashable], Iterable[Hashable]] | None:
        """Return the function from a problem to those near it; see BestOf."""
        return None

    def hopeless(self, _row: Row[P]) -> Callable[[Hashable], bool] | None:
        """Return the function that tells that a row is not to be tried; see Alternative."""
        return None

    def refused(self, _problem: Any) -> int:
        """Return how many calls rows have left to PyTorch's own kernel because of their operands.

        They are counted if a row has a `reach` beyond its own results.
        """
        return 0

    def scratch(self, row: Row[P], problem: P) -> int:
        """Return the bytes that a call takes beside operands and results, on the CPU."""
        return 0 if row.scratch is None or self.device is not CPU else row.scratch(problem)

    def unpromising(self, _row: Row[P], _problem: P) -> str:
        """Return in words why a row that is not promising is left out, for reports."""
        return "estimated slower"

    def listen(self, _entry: Entry) -> None:
        """Take an entry of the selector's journal."""

    def operand_bytes(self, _problem: P) -> float:
        """Return the bytes of large operands, whose trials leave memory behind; else 0."""
        return 0.0

    def layer_of(self, _problem: P) -> Hashable | None:
        """Return which layer of a model a problem belongs to; None if that is not counted."""
        return None

    def configure(self, _configuration: Configuration) -> None:
        """Take over what a configuration says of the operation's own resources."""

    def lend_to(self, _shim: Shim | None) -> None:
        """Lend packed operands to settled calls without Python from now on."""

    def packs_again(self, _row: Row[P], _operands: Operands) -> bool:
        """Return whether a row is to pack an operand that is not packed, or has changed since."""
        return False

    def decided(self, problem: P, chosen: dict[P, str]) -> None:
        """Free what only trials of a problem needed. `chosen` are all decisions at present."""

    def clear(self) -> None:
        """Free what calls have kept."""

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return calls that `bestof bench operation` measures: arguments of `call`, by a name."""
        return {}

    def is_chosen_at(self, level: Accuracy) -> bool:
        """Return whether any other row than PyTorch's own may be chosen at a level."""
        return any(allows(level, row.accuracy) for row in self.rows[1:])
