"""One implementation of an operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bestof.accuracy import DEFAULT_ACCURACY, Accuracy, allows
from bestof.torch.backends.shim import Native
from bestof.torch.ops.bound import ErrorBound, Reach
from bestof.torch.ops.dtypes import Dtypes, dtype_of, own

P = TypeVar("P")
"""What identifies a call: a hashable value with a canonical text."""


def _always(_problem: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Row(Generic[P]):
    """One implementation of an operation.

    name: in stores, reports and BESTOF_FORCE.
    function: (PyTorch's own kernel, problem, operands...) -> what PyTorch's own kernel returns,
        with the same sizes, strides and dtypes. It never changes its operands.
    supports: whether it can compute a problem of its dtypes at all.
    promising: whether it is worth a trial. It is asked only where `supports` holds.
    dtypes: the types of operands, results and sums that it has; None for PyTorch's own kernels,
        which compute all that the operation chooses for.
    bound: the error that it promises for a problem; None if the operation knows.
    estimate: its cost for a problem before the first call, by which `promising` may compare rows of
        one operation; None if it is tried wherever it is supported.
    accuracy: the strictest level at which it may be chosen.
    devices: the dispatch keys of the devices that it runs on.
    compiled: (problem, operands...) -> the kernel that computes calls that look like this one
        without Python, or None if there is none. Without it, Python runs the function.
    packs: the algorithm for which an operand is packed and kept; "" if the row reads all operands.
    shapes: the most problems of a process that it is tried for, because its library keeps a kernel
        for each of them; None if nothing is kept.
    scratch: the bytes that a call takes beside operands and results, packed copies included; None
        if it takes few.
    reach: how far one element can reach: the results that read it.
    formerly: the places that the function had in earlier versions of bestof. Their evidence holds.
    registered: the name by which a program has put the row in; "" for those of bestof.
    """

    name: str
    function: Callable[..., Any]
    supports: Callable[[P], bool] = _always
    promising: Callable[[P], bool] = _always
    dtypes: tuple[Dtypes, ...] | None = None
    bound: Callable[[P], ErrorBound] | None = None
    estimate: Callable[[P], float] | None = None
    accuracy: Accuracy = "exact"
    devices: tuple[str, ...] = ("CPU",)
    compiled: Callable[..., Native | None] | None = None
    packs: str = ""
    shapes: int | None = None
    scratch: Callable[[P], int] | None = None
    reach: Reach = "own"
    formerly: tuple[str, ...] = ()
    registered: str = ""

    def columns(self, problem: P) -> Dtypes | None:
        """Return the types by which the row computes a problem; None if it does not."""
        name = dtype_of(problem)
        if self.dtypes is None:
            return own(name)
        return next((one for one in self.dtypes if one.operands == name), None)

    def can_run(self, problem: P) -> bool:
        """Return whether the row can compute a problem, at the problem's level of accuracy.

        A problem has a dtype and a level of accuracy. Without them, it is of float32, and it is met
        at the default level or below.
        """
        level: Accuracy = getattr(problem, "accuracy", DEFAULT_ACCURACY)
        return (
            allows(level, self.accuracy)
            and self.columns(problem) is not None
            and self.supports(problem)
        )

    def is_tried(self, problem: P) -> bool:
        """Return whether a search tries the row."""
        return self.can_run(problem) and self.promising(problem)
