"""Protect callers from alternatives with wrong results, by comparison with the first one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from bestof.errors import InvalidArgument, WrongResult
from bestof.selection.circumstances import told
from bestof.selection.late_times import LateTimes

Check = float | Callable[[Any, Any], bool] | None


@dataclass(frozen=True, slots=True)
class Guard:
    """How a selector runs its trials.

    `check` compares a result with the first alternative's. `restore` puts arguments back. `clock`
    times the calls; `late` replaces it if times are known later.
    """

    check: Check
    restore: Callable[..., Callable[[], object]] | None
    clock: Callable[[], float]
    late: LateTimes | None

    @property
    def is_plain(self) -> bool:
        """Whether a trial is only a timed call."""
        return self.check is None and self.restore is None and self.late is None

    def undo(
        self, selector: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], object]:
        """Call `restore`; return its function that puts the arguments back."""
        assert self.restore is not None
        undo = self.restore(*args, **kwargs)
        if not callable(undo):
            raise InvalidArgument(
                f"BestOf({selector!r}): restore: expected to get a function that puts the "
                f"arguments back; got {type(undo).__name__}"
            )
        return undo

    def fault(self, expected: Any, got: Any) -> str | None:
        """Return in what way a result is wrong, or None if it is right."""
        try:
            compare(self.check, expected, got)
        except WrongResult as error:
            return str(error)
        except Exception as error:  # the user's check failed: no result passes it
            return f"check raised {told(error)}"
        return None


def validate_check(selector: str, check: Any) -> Check:
    """Return `check` as a Check: None, a relative tolerance, or a function of (expected, got).

    Raises InvalidArgument for anything else.
    """
    if check is None or callable(check):
        return check  # type: ignore[no-any-return]  # Any until here: it came from the user
    if isinstance(check, int | float) and not isinstance(check, bool) and 0 <= check < inf:
        return float(check)
    raise InvalidArgument(
        f"BestOf({selector!r}): check: expected None, a relative tolerance of at least 0, or a "
        f"function of (expected, got); got {check!r}"
    )


def own_copy(check: Check, result: Any) -> Any:
    """Return a copy of a result, or the result itself if no copy of it passes the check."""
    with suppress(Exception):  # anything may fail to be copied
        duplicate = copy.deepcopy(result)
        compare(check, result, duplicate)
        return duplicate
    return result


def compare(check: Check, expected: Any, got: Any) -> None:
    """Raise WrongResult if `got` is not as expected. NaN never passes.

    A tolerance is relative to the largest expected magnitude. It applies to numbers, to arrays
    (NumPy's, torch's, or anything with a shape and subtraction), and to nested sequences and
    mappings of these. Other values must be equal.
    """
    if check is None:
        return
    if callable(check):
        if not check(expected, got):
            raise WrongResult("check(expected, got) returned false")
        return
    _compare(check, expected, got, "result")


def _compare(tolerance: float, expected: Any, got: Any, where: str) -> None:
    if hasattr(expected, "shape"):
        _compare_arrays(tolerance, expected, got, where)
        return
    if tuple(getattr(got, "shape", (1,))) == () and hasattr(got, "item"):
        got = got.item()  # an array scalar instead of a number
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping) or expected.keys() != got.keys():
            raise WrongResult(
                f"{where}: expected a mapping with the same keys; got {type(got).__name__}"
            )
        for key in expected:
            _compare(tolerance, expected[key], got[key], f"{where}[{key!r}]")
    elif isinstance(expected, Sequence) and not isinstance(expected, str | bytes | bytearray):
        if not isinstance(got, Sequence) or len(expected) != len(got):
            raise WrongResult(f"{where}: expected a sequence of {len(expected)}; got {_size(got)}")
        for position, (one, other) in enumerate(zip(expected, got, strict=True)):
            _compare(tolerance, one, other, f"{where}[{position}]")
    elif isinstance(expected, int | float | complex) and isinstance(got, int | float | complex):
        if expected != got:
            scale = abs(expected)
            _judge(tolerance, abs(got - expected), 0.0 if scale == inf else scale, where)
    elif hasattr(got, "shape") or not bool(expected == got):
        raise WrongResult(f"{where}: expected {_short(expected)}; got {_short(got)}")


def _compare_arrays(tolerance: float, expected: Any, got: Any, where: str) -> None:
    shape = getattr(got, "shape", () if isinstance(got, int | float | complex) else None)
    if shape is None or tuple(shape) != tuple(expected.shape):
        raise WrongResult(f"{where}: expected the shape {tuple(expected.shape)}; got {_size(got)}")
    if 0 in tuple(expected.shape):
        return
    expected, got = _detached(expected), _detached(got)
    kind = str(getattr(expected, "dtype", ""))
    exact = "int" in kind and tolerance == 0.0
    if exact or not any(number in kind for number in ("float", "complex", "int")):
        if not bool((expected == got).all()):
            raise WrongResult(f"{where}: {kind} values differ")
        return
    if "int" in kind:
        expected, got = expected * 1.0, got * 1.0  # differences of unsigned integers wrap around
    # If one element is NaN, the maximum of NumPy and of torch is NaN, which _judge refuses.
    scale = float(abs(expected).max())
    if not scale < inf:
        # Infinities must agree in place and sign. The scale is that of the finite values.
        finite = abs(expected) < inf
        if not bool(((expected == got) | finite).all()):
            raise WrongResult(f"{where}: NaN, or infinite values differ")
        if not bool(finite.any()):
            return
        expected, got = expected[finite], got[finite]
        scale = float(abs(expected).max())
    _judge(tolerance, float(abs(got - expected).max()), scale, where)


def _detached(array: Any) -> Any:
    """Return a tensor without its gradient graph: torch warns if such a tensor becomes a number."""
    detach = getattr(array, "detach", None)
    return array if detach is None else detach()


def _judge(tolerance: float, difference: float, scale: float, where: str) -> None:
    if not difference <= tolerance * scale:
        share = difference / scale if scale else inf
        raise WrongResult(
            f"{where}: off by {share:.3g} of the largest value, where {tolerance:.3g} is allowed"
        )


def _size(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"the shape {tuple(shape)}"
    return f"{len(value)} items" if isinstance(value, Sequence) else type(value).__name__


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
