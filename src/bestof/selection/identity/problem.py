"""Write problems as canonical text, under which they are stored and shown."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import Any

from bestof.errors import ProblemError

_DEEPEST = 100  # levels of nesting; Python's own limit is some hundreds

# Types are compared exactly, so that a subclass (a bool among ints, a numpy.float64 among floats)
# is not taken for its parent. `ascii` replaces `repr`: the characters that repr escapes depend on
# the Unicode tables of the Python version, and SQLite refuses the lone surrogates that repr lets
# through.
_SCALARS: dict[type, Callable[[Any], str]] = {
    int: repr,
    str: ascii,
    float: repr,
    bool: repr,
    type(None): repr,
    bytes: repr,
}


def canonical(problem: object) -> str | None:
    """Return a text that is the same for the same problem in every process, or None.

    Supported are None, bool, int, float, str, bytes, members of an Enum, and tuples, frozensets,
    NamedTuples and frozen dataclasses of these. The text shows the type: 1, True, 1.0 and "1" have
    different texts. All NaNs share one text. The members of a frozenset are sorted by their texts.
    A class is named by `__qualname__` without its module, because the same class is
    `__main__.Shape` in a script and `script.Shape` elsewhere. Fields of a dataclass that do not
    count for its equality are left out. A `torch.Size` is written as a tuple, and a numpy scalar as
    the Python number that it holds.

    A class may have a method `canonical()` that returns a str. This is then its text. It must
    contain all that the equality of the class compares, and nothing else.

    None is returned for anything else, and for an integer with more digits than Python agrees to
    write. Such a problem is remembered in this process only.

    Raises ProblemError for a problem with more than 100 levels of nesting.
    """
    try:
        return _text(problem, 0)
    except ValueError:  # sys.set_int_max_str_digits
        return None


def problem_text(problem: Hashable) -> str:
    """Return the text of a problem for records and reports.

    This is its canonical text, or else its repr.
    """
    return canonical(problem) or repr(problem)


def _text(value: Any, depth: int) -> str | None:
    if depth > _DEEPEST:
        raise ProblemError(
            f"a problem nests more than {_DEEPEST} levels deep; "
            f"let get_problem_size return a flat tuple of numbers and texts"
        )
    kind = type(value)
    write = _SCALARS.get(kind)
    if write is not None:
        return write(value)
    if kind is tuple:
        return _tuple(value, depth)
    own = getattr(kind, "canonical", None)
    if callable(own) and isinstance(written := own(value), str):
        return written
    if isinstance(value, Enum):
        if value.name is not None:
            return f"{kind.__qualname__}.{value.name}"
        return _call(kind, (_text(value.value, depth + 1),))
    if isinstance(value, tuple):
        names = getattr(kind, "_fields", None)
        return _tuple(value, depth) if names is None else _fields(kind, names, value, depth)
    if kind is frozenset:
        members = [_text(member, depth + 1) for member in value]
        texts = [text for text in members if text is not None]
        return f"frozenset({{{', '.join(sorted(texts))}}})" if len(texts) == len(members) else None
    settings = getattr(kind, "__dataclass_params__", None)
    if settings is not None:
        if not (settings.frozen and settings.eq):
            return None  # it may change, or it is equal to itself only
        names = tuple(name for name, field in kind.__dataclass_fields__.items() if _compared(field))
        return _fields(kind, names, (getattr(value, name) for name in names), depth)
    if _is_numpy_scalar(kind):
        write = _SCALARS.get(type(item := value.item()))
        return (
            None if write is None else write(item)
        )  # a longdouble gives itself, a datetime64 a datetime
    return None


def _tuple(values: Iterable[Any], depth: int) -> str | None:
    texts = []
    for value in values:
        write = _SCALARS.get(type(value))
        text = _text(value, depth + 1) if write is None else write(value)
        if text is None:
            return None
        texts.append(text)
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _fields(kind: type, names: tuple[str, ...], values: Iterable[Any], depth: int) -> str | None:
    texts = [_text(value, depth + 1) for value in values]
    return _call(
        kind,
        (
            None if text is None else f"{name}={text}"
            for name, text in zip(names, texts, strict=True)
        ),
    )


def _call(kind: type, arguments: Iterable[str | None]) -> str | None:
    texts = []
    for argument in arguments:
        if argument is None:
            return None
        texts.append(argument)
    return f"{kind.__qualname__}({', '.join(texts)})"


def _compared(field: Any) -> bool:
    # The table also holds the pseudo-fields of ClassVar and InitVar. Only true fields have this
    # marker.
    return bool(field.compare) and field._field_type.name == "_FIELD"


def _is_numpy_scalar(kind: type) -> bool:
    # Compare names, because the engine imports the standard library only. A tensor has .item() too,
    # but it is not a value.
    return any(
        parent.__name__ == "generic" and parent.__module__ == "numpy" for parent in kind.__mro__
    )
