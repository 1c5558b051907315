"""Canonical texts: stable, unambiguous, and None for unsupported values."""

from __future__ import annotations

import enum
import math
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestof.selection.identity.problem import canonical


class Layout(enum.Enum):
    NHWC = 1
    NCHW = 2

    def __str__(self) -> str:
        return "layout"


class Level(enum.IntEnum):
    ONE = 1


class Pass(enum.Flag):
    FORWARD = 1
    BACKWARD = 2


class Size(NamedTuple):
    height: int
    width: int

    def __repr__(self) -> str:
        return "size"


Bare = namedtuple("Bare", ())


@dataclass(frozen=True)
class Shape:
    known: ClassVar[int] = 7
    n: int
    layout: Layout
    cached: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return "shape"


@dataclass(frozen=True, eq=False)
class ByIdentity:
    n: int


@dataclass(unsafe_hash=True)
class Mutable:
    n: int


class TupleWithoutFields(tuple):
    __slots__ = ()


class OwnInt(int):
    pass


class OwnText:
    def canonical(self) -> str:
        return "my own"


TEXTS = [
    (None, "None"),
    (True, "True"),
    (1, "1"),
    (1.0, "1.0"),
    ("1", "'1'"),
    (b"1", "b'1'"),
    (-0.0, "-0.0"),
    (math.nan, "nan"),
    (math.inf, "inf"),
    (-math.inf, "-inf"),
    (10**20, "100000000000000000000"),
    ("é\n'\ud800😀", '"\\xe9\\n\'\\ud800\\U0001f600"'),
    ((), "()"),
    ((1,), "(1,)"),
    ((1, (2, "a")), "(1, (2, 'a'))"),
    (frozenset(), "frozenset({})"),
    (frozenset({10, 9, (1, 2)}), "frozenset({(1, 2), 10, 9})"),
    (Layout.NHWC, "Layout.NHWC"),
    (Level.ONE, "Level.ONE"),
    (Pass.FORWARD, "Pass.FORWARD"),
    (Size(1, 2), "Size(height=1, width=2)"),
    (Bare(), "Bare()"),
    (Shape(3, Layout.NCHW, 9), "Shape(n=3, layout=Layout.NCHW)"),
    (
        (Shape(3, Layout.NCHW), Size(1, 2)),
        "(Shape(n=3, layout=Layout.NCHW), Size(height=1, width=2))",
    ),
    (TupleWithoutFields((1, 2)), "(1, 2)"),
    (OwnText(), "my own"),
    (np.int64(3), "3"),
    (np.float32(0.5), "0.5"),
    (np.float64(0.1), "0.1"),
    (np.bool_(True), "True"),
    (np.str_("a"), "'a'"),
    ((np.int32(3), 4), "(3, 4)"),
]


@pytest.mark.parametrize(("problem", "text"), TEXTS, ids=[text for _, text in TEXTS])
def test_the_text_of(problem: object, text: str) -> None:
    assert canonical(problem) == text


NONE = {
    "object": object(),
    "function": len,
    "class": int,
    "list": [1],
    "dict": {},
    "set": {1},
    "complex": 1j,
    "decimal": Decimal("1.5"),
    "own int": OwnInt(3),
    "by identity": ByIdentity(1),
    "mutable": Mutable(1),
    "date": np.datetime64("2020-01-01"),
    "longdouble": np.longdouble(1),
    "array": np.zeros(1),
}


@pytest.mark.parametrize("kind", NONE)
def test_no_text_for(kind: str) -> None:
    value = NONE[kind]
    assert canonical(value) is None
    assert canonical((1, value)) is None
    assert canonical((1, (value,))) is None
    assert canonical(Size(1, value)) is None  # type: ignore[arg-type]  # on purpose
    assert canonical(Shape(1, value)) is None  # type: ignore[arg-type]


def test_no_text_for_a_set_with_a_member_that_has_none() -> None:
    assert canonical(frozenset({1, len})) is None


def test_no_text_for_an_integer_that_python_refuses_to_write() -> None:
    limit = sys.get_int_max_str_digits() if hasattr(sys, "get_int_max_str_digits") else 0
    if not limit:
        pytest.skip("this Python writes integers of any length")
    assert canonical((10**limit,)) is None


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(inner, max_size=3)
        | st.builds(Size, inner, inner)
    ),
    max_leaves=6,
)


def _typed(value: object) -> object:
    """The value with its types, so that 1, True and 1.0 are unequal; an oracle that writes no
    text."""
    if type(value) is frozenset:
        return (frozenset, frozenset(_typed(member) for member in value))
    if isinstance(value, tuple):
        return (type(value), tuple(_typed(member) for member in value))
    if isinstance(value, float):
        return (float, value.hex())
    return (type(value), value)


@pytest.mark.long
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(_VALUES, _VALUES)
def test_two_problems_share_a_text_only_if_they_are_the_same(one: object, two: object) -> None:
    assert (canonical(one) == canonical(two)) is (_typed(one) == _typed(two))
    text = canonical((one, two))
    assert text is not None
    assert text.isascii()
    assert (text == canonical((two, one))) is (_typed(one) == _typed(two))


def test_the_text_is_the_same_in_a_process_with_another_hash_seed() -> None:
    program = (
        "from bestof.selection.identity.problem import canonical\n"
        "print(canonical(frozenset({'a', 'b', 'c', ('d', None), b'e', frozenset({'f', 'g'})})))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1
