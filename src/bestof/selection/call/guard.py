"""Protect callers from alternatives with wrong results, by comparison with the first one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from bestof.errors import InvalidArgument, WrongResult
from bestof.selection.interrupts import reraise_from_outside
from bestof.selection.trials.circumstances import told
from bestof.selection.trials.timer import LateTimes
from bestof.selection.trials.verifier import Verifier

Check = float | Callable[[Any, Any], bool] | None


@dataclass(frozen=True, slots=True)
class Guard:
    """How a selector runs its trials.

    `check` compares a result with the first alternative's. `restore` puts arguments back. `clock`
    times the calls; `late` replaces it if times are known later. `verifier` takes the place of
    `check` in selectors that know their operation.
    """

    check: Check
    restore: Callable[..., Callable[[], object]] | None
    clock: Callable[[], float]
    late: LateTimes | None
    verifier: Verifier | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a trial is only a timed call."""
        plain = self.check is None and self.restore is None and self.late is None
        return plain and self.verifier is None

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
            reraise_from_outside()
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
    try:
        duplicate = _copied(result)
        compare(check, result, duplicate)
    except Exception:  # anything may fail to be copied
        reraise_from_outside()
        return result
    return duplicate


def _copied(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {key: _copied(one) for key, one in value.items()}
    # A tensor inside a graph of gradients cannot be copied by `deepcopy`. A clone stays in it.
    clone = getattr(value, "clone", None) if hasattr(value, "requires_grad") else None
    return copy.deepcopy(value) if clone is None else clone()


def compare(check: Check, expected: Any, got: Any) -> None:
    """Raise WrongResult if `got` is not as expected. NaN never passes.

    A tolerance is relative to the largest expected magnitude. It applies to numbers, to arrays
    (NumPy's, torch's, or anything with a shape and subtraction), and to nested sequences and
    mappings of these. Other values must be equal.

    Types must agree, too: `got` is of the type that is expected, or of a subclass. An array has
    the expected dtype and, in torch, the same device, the same layout, and gradients where they are
    expected. Numbers are compared by value: an int, a float and a NumPy scalar may stand for one
    another, but a complex number for another one only, and a bool for a bool only.
    """
    if check is None:
        return
    if callable(check):
        if not check(expected, got):
            raise WrongResult("check(expected, got) returned false")
        return
    _compare(check, expected, got, "result")


def _compare(tolerance: float, expected: Any, got: Any, where: str) -> None:
    if hasattr(expected, "shape") and hasattr(got, "shape"):
        _compare_arrays(tolerance, expected, got, where)
        return
    expected, got = _number(expected), _number(got)
    if isinstance(expected, int | float | complex) and isinstance(got, int | float | complex):
        _compare_numbers(tolerance, expected, got, where)
        return
    if hasattr(expected, "shape"):
        raise WrongResult(f"{where}: expected the shape {tuple(expected.shape)}; got {_size(got)}")
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping) or expected.keys() != got.keys():
            raise WrongResult(
                f"{where}: expected a mapping with the same keys; got {type(got).__name__}"
            )
        _compare_types(expected, got, where)
        for key in expected:
            _compare(tolerance, expected[key], got[key], f"{where}[{key!r}]")
    elif isinstance(expected, Sequence) and not isinstance(expected, str | bytes | bytearray):
        if not isinstance(got, Sequence) or len(expected) != len(got):
            raise WrongResult(f"{where}: expected a sequence of {len(expected)}; got {_size(got)}")
        _compare_types(expected, got, where)
        for position, (one, other) in enumerate(zip(expected, got, strict=True)):
            _compare(tolerance, one, other, f"{where}[{position}]")
    elif hasattr(got, "shape") or not bool(expected == got):
        raise WrongResult(f"{where}: expected {_short(expected)}; got {_short(got)}")
    else:
        _compare_types(expected, got, where)


def _compare_types(expected: Any, got: Any, where: str) -> None:
    if not isinstance(got, type(expected)):
        raise WrongResult(
            f"{where}: expected the type {type(expected).__name__}; got {type(got).__name__}"
        )


def _number(value: Any) -> Any:
    """Return the Python number of a NumPy number; any other value as it is."""
    return value.item() if _is_numpy_number(value) else value


def _is_numpy_number(value: Any) -> bool:
    """Return whether a value is a NumPy scalar, or a NumPy array without dimensions."""
    # Compare names, because the engine imports the standard library only.
    kinds = {(kind.__module__, kind.__name__) for kind in type(value).__mro__}
    if ("numpy", "generic") in kinds:
        return True
    return ("numpy", "ndarray") in kinds and value.shape == ()


def _compare_numbers(
    tolerance: float, expected: int | float | complex, got: int | float | complex, where: str
) -> None:
    for kind in (bool, complex):
        if isinstance(expected, kind) != isinstance(got, kind):
            raise WrongResult(
                f"{where}: expected the type {type(expected).__name__}; got {type(got).__name__}"
            )
    if expected != got:
        scale = abs(expected)
        _judge(tolerance, abs(got - expected), 0.0 if scale == inf else scale, where)


def _compare_arrays(tolerance: float, expected: Any, got: Any, where: str) -> None:
    if tuple(got.shape) != tuple(expected.shape):
        raise WrongResult(f"{where}: expected the shape {tuple(expected.shape)}; got {_size(got)}")
    _compare_kinds(expected, got, where)
    if 0 in tuple(expected.shape):
        return
    kind = str(getattr(expected, "dtype", ""))
    expected, got = _values(expected, kind), _values(got, kind)
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


def _compare_kinds(expected: Any, got: Any, where: str) -> None:
    """Raise WrongResult unless two arrays agree in all that a program can depend on but values."""
    for what, mine, other in (
        ("type", _array_type(expected), _array_type(got)),
        ("dtype", _dtype(expected), _dtype(got)),
        ("device", _device(expected), _device(got)),
        ("layout", _attribute(expected, "layout"), _attribute(got, "layout")),
        ("requires_grad", _requires_grad(expected), _requires_grad(got)),
    ):
        if mine != other:
            raise WrongResult(f"{where}: expected the {what} {mine}; got {other}")
    if _attribute(expected, "grad_fn") != "None" and _attribute(got, "grad_fn") == "None":
        raise WrongResult(
            f"{where}: expected a result with its graph of gradients; got one without, so nothing "
            "would flow back to the arguments"
        )
    inference = getattr(expected, "is_inference", None), getattr(got, "is_inference", None)
    if all(map(callable, inference)) and got.is_inference() and not expected.is_inference():
        raise WrongResult(f"{where}: got a tensor of inference mode, which gradients cannot use")


def _attribute(array: Any, name: str) -> str:
    return str(getattr(array, name, None))


def _array_type(array: Any) -> str:
    """Return the name of an array's type. A parameter counts as the tensor that it is."""
    if _is_numpy_number(array):
        return "numpy number"
    kind = type(array)
    if kind.__module__ in ("torch.nn.parameter", "torch.nn.buffer"):
        kind = kind.__mro__[1]
    return f"{kind.__module__}.{kind.__qualname__}"


def _dtype(array: Any) -> str:
    """Return the dtype of an array. Texts of any length have one dtype, in any byte order."""
    dtype = getattr(array, "dtype", None)
    kind = getattr(dtype, "kind", "")
    return str(kind) if kind in ("U", "S") and kind else str(dtype)


def _device(array: Any) -> str:
    device = getattr(array, "device", None)
    return "" if callable(device) else str(device)


def _requires_grad(array: Any) -> bool:
    return getattr(array, "requires_grad", False) is True


def _values(array: Any, kind: str) -> Any:
    """Return what is compared of an array: dense, without a graph of gradients.

    torch warns if a tensor with a graph becomes a number. Differences of numbers of 16 bits are
    computed with 32, in which they can neither overflow nor be rounded to zero.
    """
    detach = getattr(array, "detach", None)
    if detach is not None:
        array = detach()
    if str(getattr(array, "layout", "torch.strided")) != "torch.strided":
        array = array.to_dense()
    if "float16" in kind or "float8" in kind:
        widen = getattr(array, "float", None)
        array = array.astype("float32") if widen is None else widen()
    return array


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
