"""Checks of alternatives: what the rows of bestof are held to, for those of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.accuracy import DEFAULT_ACCURACY, allows
from bestof.errors import InvalidArgument
from bestof.torch.ops import table
from bestof.torch.ops.dtypes import FLOAT32, name_of
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.row import Row
from bestof.torch.rows.entry_points import load_entry_points
from bestof.torch.rows.operand_guard import OperandGuard
from bestof.torch.rows.row_selector import original_of
from bestof.torch.rows.row_verifier import kind_of, wrong_strides

_Arguments = tuple[Any, ...]


class Checked(NamedTuple):
    """What a check did.

    passed: the cases in which the alternative was right. not_supported: those that the operation or
    the alternative leaves to PyTorch's own kernel.
    """

    passed: tuple[str, ...]
    not_supported: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.passed)} cases passed, {len(self.not_supported)} are not supported"


def check_alternative(
    operation: str,
    alternative: str | Callable[..., Any],
    problems: Mapping[str, _Arguments] | None = None,
) -> Checked:
    """Hold one row of an operation against float64, and against what every row has to do.

    Each problem is computed in the dtypes of the row, with one thread and with two. The smallest is
    also computed in channels last, from operands that are not contiguous, with zeros, NaN and
    infinities, and with an empty batch. The results must have PyTorch's sizes, strides and dtypes,
    and lie within the error that the row promises. NaN and infinities must lie where PyTorch has
    them, in the type of the operands, in float32 or in float64, but for rows of the accuracy
    `relaxed`. The row
    must leave its operands alone, share no memory with them, and be right again in memory that
    holds other numbers.

    operation: its name in reports, such as "silu".
    alternative: the name of a row, registered or of bestof, or a function as `bt.register` takes.
    problems: arguments of the operator of PyTorch, by a name; the examples of the operation if
        there are none.

    Returns what was checked. Raises AssertionError with all that failed, InvalidArgument for an
    unknown name, and for problems that are no arguments of the operator.
    """
    load_entry_points()
    found = table.named(operation, "check_alternative")
    row = _row_of(found, alternative)
    given = found.examples() if problems is None else problems
    _check_problems(found, given)
    passed, not_supported, failed = list[str](), list[str](), list[str]()
    for name, arguments in _cases(row, given):
        for threads in (1, 2):
            case = f"{name}, {threads} thread{'s' * (threads > 1)}"
            with _threads(threads), torch.no_grad():
                wrong = _wrong(found, row, arguments)
            if wrong is None:
                not_supported.append(case)
            elif wrong:
                failed += [f"  {case}: {one}" for one in wrong]
            else:
                passed.append(case)
    where = f"check_alternative({operation!r}, {row.name!r})"
    if failed:
        raise AssertionError("\n".join([f"{where}: {len(failed)} checks failed:", *failed]))
    if not passed:
        raise AssertionError(
            f"{where}: it supports none of {len(not_supported)} cases; pass problems that it "
            "supports"
        )
    return Checked(tuple(passed), tuple(not_supported))


def _row_of(operation: Operation[Any], alternative: str | Callable[..., Any]) -> Row[Any]:
    if callable(alternative):
        name = getattr(alternative, "__name__", "function")
        return Row(name, alternative, dtypes=(FLOAT32,))
    names = [row.name for row in operation.rows]
    if alternative not in names:
        raise InvalidArgument(
            f"check_alternative: {operation.name!r} has no row {alternative!r}; "
            f"{table.expected_one(alternative, names)}"
        )
    return operation.row(alternative)


def _check_problems(operation: Operation[Any], problems: object) -> None:
    """Raise InvalidArgument if problems are not the arguments of the operator, by a name."""
    where = "check_alternative: problems"
    if not isinstance(problems, Mapping) or not problems:
        raise InvalidArgument(
            f"{where}: expected a dict of arguments, such as {{'a small one': (x,)}}; got "
            f"{problems!r}"
        )
    for name, arguments in problems.items():
        if not isinstance(arguments, tuple | list) or not any(map(_is_number, arguments)):
            raise InvalidArgument(
                f"{where}: {name!r}: expected a tuple of arguments with a tensor of floating-point "
                f"numbers among them; got {type(arguments).__name__}"
            )
        try:
            signature(operation.call).bind(DEFAULT_ACCURACY, *arguments)
        except TypeError as error:
            raise InvalidArgument(
                f"{where}: {name!r}: these are no arguments of {operation.name!r}: {error}"
            ) from error


def _cases(row: Row[Any], problems: Mapping[str, _Arguments]) -> Iterator[tuple[str, _Arguments]]:
    """Yield the names and arguments of all cases: each problem, and variants of the smallest."""
    dtypes = [getattr(torch, one.operands) for one in row.dtypes or (FLOAT32,)]
    smallest = min(problems, key=lambda name: sum(map(_numel, problems[name])))
    for name, arguments in problems.items():
        for dtype in dtypes:
            given = _mapped(arguments, lambda one, dtype=dtype: one.to(dtype))  # type: ignore[misc]
            words = f"{name}, {name_of(dtype)}"
            yield words, given
            if name != smallest:
                continue
            for what, change in _CHANGES.items():
                yield f"{words}, {what}", _mapped(given, change)
            yield f"{words}, an empty batch", _first_mapped(given, lambda one: one[:0])
            if allows(DEFAULT_ACCURACY, row.accuracy):
                for what, value in (("NaN", torch.nan), ("infinities", torch.inf)):
                    yield f"{words}, {what}", _first_mapped(given, _sprinkled(value))


def _numel(one: Any) -> int:
    return one.numel() if isinstance(one, Tensor) else 0


def _mapped(arguments: Iterable[Any], change: Callable[[Tensor], Tensor]) -> _Arguments:
    return tuple(change(one) if _is_number(one) else one for one in arguments)


def _first_mapped(arguments: _Arguments, change: Callable[[Tensor], Tensor]) -> _Arguments:
    numbers = [k for k, one in enumerate(arguments) if _is_number(one)]
    place = next((k for k in numbers if arguments[k].dim() > 1), numbers[0])
    return (*arguments[:place], change(arguments[place]), *arguments[place + 1 :])


def _is_number(one: Any) -> bool:
    return isinstance(one, Tensor) and one.is_floating_point()


def _channels_last(one: Tensor) -> Tensor:
    return one.contiguous(memory_format=torch.channels_last) if one.dim() == 4 else one


def _not_contiguous(one: Tensor) -> Tensor:
    wide = torch.full((*one.shape[:-1], 2 * one.shape[-1]), torch.nan, dtype=one.dtype)
    wide[..., ::2] = one
    return wide[..., ::2]


def _sprinkled(value: float) -> Callable[[Tensor], Tensor]:
    """Return a function that puts a value and its negative among the numbers of a tensor."""

    def sprinkled(one: Tensor) -> Tensor:
        changed = one.clone()
        numbers = changed.view(-1) if changed.is_contiguous() else changed
        numbers[: len(numbers) // 2 : max(1, len(numbers) // 6)] = value
        numbers[-1:] = -value
        return changed

    return sprinkled


_CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "channels last": _channels_last,
    "not contiguous": _not_contiguous,
    "zeros": torch.zeros_like,
}


def _wrong(operation: Operation[Any], row: Row[Any], arguments: _Arguments) -> list[str] | None:
    """Return what is wrong with the results for the arguments of an operator, in words.

    None if the row does not compute them.
    """
    if operation.least and any(_is_number(one) and not one.numel() for one in arguments):
        return None  # C++ leaves it to PyTorch, and no row is asked
    original = original_of(operation)
    level = DEFAULT_ACCURACY if allows(DEFAULT_ACCURACY, row.accuracy) else row.accuracy
    call = operation.call(level, *arguments)
    if call is None or not row.can_run(call.problem):
        return None
    args = (call.problem, *call.operands)
    tensors = call.operands[: len(call.operands) - operation.others]
    expected = operation.rows[0].function(original, *args)
    guard = OperandGuard(tensors)
    try:
        got = row.function(original, *args)
    except Exception as error:
        return [f"raised {type(error).__name__}: {error}"]
    kind = kind_of(expected, got)
    if kind is not None:
        return [kind]
    treated = guard.complaint(_results(got))
    wrong = [] if treated is None else [treated]
    wrong += wrong_strides(expected, got)
    if not any(one.numel() for one in _results(expected)):
        return wrong
    right = _in(torch.float64, operation, original, args, expected)
    others = [right]
    if not all(map(_is_finite, call.operands)):
        others.append(_in(torch.float32, operation, original, args, expected))
        right = expected
    elif operation.compare(operation.rows[0], original, args, right, expected).wrong is not None:
        right = expected  # its results are compared bit for bit

    def judge(result: Any) -> list[str]:
        nearest = right
        for other in others:
            nearest = _as_far_spread(nearest, other, result)
        found = operation.compare(row, original, args, nearest, result)
        return [] if found.wrong is None else [found.wrong]

    wrong += judge(got) + _wrong_again(row, original, args, got, judge)
    guard.put_back()
    return wrong


def _wrong_again(
    row: Row[Any],
    original: Any,
    args: _Arguments,
    got: Any,
    judge: Callable[[Any], list[str]],
) -> list[str]:
    """Return what is wrong with a second call, in memory that holds NaN.

    Sums of several threads may round otherwise at each call.
    """
    before = [one.clone() for one in _results(got)]
    poison = [torch.full_like(one, torch.nan) for one in before if _is_number(one)]
    del poison
    again = row.function(original, *args)
    wrong = []
    if not all(map(_is_same, before, _results(again))):
        wrong += [f"a second call: {one}; is all memory written?" for one in judge(again)]
    if not all(map(_is_same, before, _results(got))):
        wrong.append("a second call overwrites the results of the first")
    return wrong


def _in(
    dtype: torch.dtype, operation: Operation[Any], original: Any, args: _Arguments, expected: Any
) -> Any:
    """Return PyTorch's results for operands of a type, rounded to the type of the expected ones.

    The expected ones if PyTorch has none in this type.
    """
    problem, *operands = args
    if hasattr(problem, "dtype"):
        problem = problem._replace(dtype=name_of(dtype))
    try:
        given = _mapped(operands, lambda one: one.to(dtype))
        found = operation.rows[0].function(original, problem, *given)
    except RuntimeError:
        return expected
    if isinstance(expected, Tensor):
        return found.to(expected.dtype)
    return tuple(
        None if one is None else one.to(right.dtype)
        for one, right in zip(found, expected, strict=True)
    )


def _as_far_spread(expected: Any, other: Any, got: Any) -> Any:
    """Return the expected results, with `other` ones where only these are numbers as a row's are.

    A sum over padding has NaN or not, by whether a kernel multiplies it with the zeros there. For
    one weight gradient, PyTorch's kernels had 992 NaN in float32, 1056 in bfloat16 and 1152 in
    float64.
    """
    if isinstance(expected, tuple | list):
        return tuple(map(_as_far_spread, expected, other, got))
    if not _is_number(expected):  # an absent result among them
        return expected
    return torch.where(~_is_alike(expected, got) & _is_alike(other, got), other, expected)


def _is_alike(one: Tensor, other: Tensor) -> Tensor:
    """Return where both are finite, both NaN, or the same infinity."""
    finite, nan = torch.isfinite(one), torch.isnan(one)
    return (finite & torch.isfinite(other)) | (nan & torch.isnan(other)) | (one == other)


def _is_finite(one: Any) -> bool:
    return not _is_number(one) or bool(torch.isfinite(one).all())


def _results(result: Any) -> list[Tensor]:
    found = (result,) if isinstance(result, Tensor) else result
    return [one for one in found if one is not None]


def _is_same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num()) and torch.equal(
        one.isnan(), other.isnan()
    )


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
