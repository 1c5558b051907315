"""Rows that a program puts into the table of an operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf
from typing import Any

import torch

from bestof.accuracy import DEFAULT_ACCURACY, Accuracy, parse_accuracy
from bestof.errors import InvalidArgument
from bestof.selection.interrupts import reraise_from_outside
from bestof.torch.ops import table
from bestof.torch.ops.bound import ErrorBound
from bestof.torch.ops.dtypes import Dtypes, name_of, own
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.row import Row
from bestof.torch.process.fork_lock import ForkLock
from bestof.torch.rows.row_selector import renew_selector

Bound = float | ErrorBound | Callable[[Any], float | ErrorBound]

_lock = ForkLock()


def register(
    operation: str,
    name: str,
    function: Callable[..., Any],
    *,
    supports: Callable[..., bool] | None = None,
    promising: Callable[..., bool] | None = None,
    dtypes: Iterable[torch.dtype] = (torch.float32,),
    bound: Bound | None = None,
    accuracy: Accuracy = DEFAULT_ACCURACY,
    grid: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Let bestof choose a function of yours too, for an operation of PyTorch on the CPU.

    The registration holds from now on, whether tuning is on or not: in eager calls, in plans that
    are made later, in reports and benchmarks. The first result for each problem is compared with
    PyTorch's own. If the function raises, returns something wrong, or writes to an operand,
    PyTorch's own kernel answers, and the function is disqualified for the problem, with one
    warning.

    operation: its name in reports, such as "max pooling".
    name: that of the row in reports, stores, `kernel.only` and BESTOF_FORCE. Evidence in stores
        belongs to this name and to the code of the function: changed code is measured again.
    function: called with (PyTorch's own kernel, problem, operands...). Returns new tensors with
        the sizes, strides and dtypes of PyTorch's results. Autograd does not record the call.
    supports: called with a problem: whether the function can compute it. All by default.
    promising: called with a problem that the function supports: whether a trial is worth its time.
    dtypes: of the operands that the function takes.
    bound: the error that the function promises, relative to the rms of the result in float64: a
        number for both the rms of the error and its largest magnitude, or a function that returns
        one for a problem. None for what bestof's own rows promise. Poolings must have PyTorch's
        bits.
    accuracy: the strictest level at which the function may be chosen.
    grid: values of keywords. Each combination is a row of its own, such as "mine tile=16 unroll=2".
        All three functions are called with these keywords too.

    Raises InvalidArgument, before anything is changed.
    """
    where = f"register({operation!r}, {name!r})"
    _check_name(where, name)
    for argument, value in (
        ("function", function),
        ("supports", supports),
        ("promising", promising),
    ):
        if not callable(value) and (value is not None or argument == "function"):
            raise InvalidArgument(f"{where}: {argument}: expected a function; got {value!r}")
    row: Row[Any] = Row(
        name,
        function,
        dtypes=_dtypes(where, dtypes),
        bound=_bound(where, bound),
        accuracy=parse_accuracy(accuracy, f"{where}: accuracy"),
        registered=name,
    )
    rows = tuple(
        _with(row, function, supports, promising, keywords)
        for keywords in _combinations(where, function, grid)
    )
    with _lock:
        found = table.named(operation, where)
        taken = {one.name for one in found.rows} | {one.registered for one in found.rows}
        for one in (name, *(one.name for one in rows)):
            if one in taken:
                raise InvalidArgument(
                    f"{where}: the operation has a row {one!r}; take another name, or unregister it"
                )
        take_rows(found, (*found.rows, *rows))


def unregister(operation: str, name: str) -> None:
    """Take a registered row, or all rows of a grid, out of the table of an operation.

    Problems that had chosen the row take the best of the other rows. Plans that are bound to the
    row keep it.
    Raises InvalidArgument if no program has registered this name.
    """
    where = f"unregister({operation!r}, {name!r})"
    with _lock:
        found = table.named(operation, where)
        rows = tuple(one for one in found.rows if not one.registered or one.registered != name)
        if len(rows) == len(found.rows):
            names = dict.fromkeys(one.registered for one in found.rows if one.registered)
            listed = ", ".join(map(repr, names)) or "none"
            raise InvalidArgument(f"{where}: there is no such row; registered are {listed}")
        take_rows(found, rows)


def take_rows(operation: Operation[Any], rows: tuple[Row[Any], ...]) -> None:
    """Let an operation and its selector have these rows from now on."""
    if rows == operation.rows:
        return
    before = operation.rows
    try:
        operation.take_rows(rows)
        renew_selector(operation)
    except BaseException:  # an interrupt, say: all of it or nothing
        operation.take_rows(before)
        renew_selector(operation)
        raise


def _with(
    row: Row[Any],
    function: Callable[..., Any],
    supports: Callable[..., bool] | None,
    promising: Callable[..., bool] | None,
    keywords: dict[str, Any],
) -> Row[Any]:
    """Return the row of one combination of keywords."""
    words = (row.name, *(f"{name}={value}" for name, value in keywords.items()))
    row = replace(row, name=" ".join(words), function=partial(_unrecorded, function, **keywords))
    if supports is not None:
        row = replace(row, supports=partial(supports, **keywords))
    return row if promising is None else replace(row, promising=partial(promising, **keywords))


def _unrecorded(function: Callable[..., Any], *given: Any, **keywords: Any) -> Any:
    """Call a function without gradients; else PyTorch lends NumPy no operand that wants some."""
    with torch.no_grad():
        return function(*given, **keywords)


def _check_name(where: str, name: object) -> None:
    is_text = isinstance(name, str) and name.strip() == name and name.isprintable()
    if not is_text or not name or "," in name:  # type: ignore[operator]  # a text
        raise InvalidArgument(
            f"{where}: name: expected a text without commas, at which BESTOF_FORCE is split, "
            "without blanks around it, and on one line"
        )


def _dtypes(where: str, dtypes: Iterable[torch.dtype]) -> tuple[Dtypes, ...]:
    found = tuple(dtypes) if isinstance(dtypes, Iterable) else (dtypes,)
    if not found or not all(isinstance(one, torch.dtype) for one in found):
        raise InvalidArgument(
            f"{where}: dtypes: expected dtypes such as [torch.float32]; got {dtypes!r}"
        )
    return tuple(own(name_of(one)) for one in found)


def _bound(where: str, bound: Bound | None) -> Callable[[Any], ErrorBound] | None:
    """Return the function from a problem to the error that a row promises."""
    if bound is None:
        return None
    if callable(bound):
        return partial(_asked_bound, bound)
    found = _bound_of(bound)
    if found is None:
        raise InvalidArgument(
            f"{where}: bound: expected a number above 0, or a function of a problem; got {bound!r}"
        )
    return lambda _problem: found


def _asked_bound(bound: Callable[[Any], Any], problem: Any) -> ErrorBound:
    """Return the bound for a problem. Raises InvalidArgument if the function gives none."""
    try:
        given = bound(problem)
    except Exception as error:
        reraise_from_outside()
        raise InvalidArgument(f"its `bound` raised {type(error).__name__}: {error}") from error
    found = _bound_of(given)
    if found is None:
        raise InvalidArgument(f"its `bound` must return a number above 0; it returned {given!r}")
    return found


def _bound_of(given: object) -> ErrorBound | None:
    """Return the bound that a program gave; None if the value is no bound."""
    if isinstance(given, ErrorBound):
        return given
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 < given < inf:  # type: ignore[operator]  # a number
        return None
    return ErrorBound(float(given), float(given))  # type: ignore[arg-type]  # as above


def _combinations(
    where: str, function: Callable[..., Any], grid: Mapping[str, Sequence[Any]] | None
) -> list[dict[str, Any]]:
    """Return the keywords of each row: one empty dict without a grid."""
    if grid is None:
        return [{}]
    if not isinstance(grid, Mapping) or not grid:
        raise InvalidArgument(f"{where}: grid: expected a dict of lists; got {grid!r}")
    for name, values in grid.items():
        if not isinstance(name, str) or not isinstance(values, list | tuple) or not values:
            raise InvalidArgument(
                f"{where}: grid: expected a list of values for each keyword; got {values!r} for "
                f"{name!r}"
            )
        if len({str(one) for one in values}) < len(values):
            raise InvalidArgument(f"{where}: grid: {name!r} has a value twice: {values!r}")
    found = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    try:
        inspect.signature(function).bind_partial(**found[0])
    except TypeError as error:
        raise InvalidArgument(
            f"{where}: grid: the function takes other keywords: {error}"
        ) from None
    except ValueError:  # a compiled function may have no signature
        pass
    return found
