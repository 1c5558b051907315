"""A matrix product to be measured, in a form that every peer understands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

from bestof.bench.convolution.case import aligned
from bestof.errors import InvalidArgument

Array: TypeAlias = "NDArray[numpy.float32]"

ORDERS = ("NN", "NT", "TN")
"""How a and b lie: row by row (N), or as the transpose of such a matrix (T)."""


@dataclass(frozen=True, slots=True)
class Case:
    """A product of float32: [rows, depth] times [depth, columns].

    `order` is NT for the forward pass of a linear layer, NN for the gradient of its input, TN for
    that of its weights.
    """

    rows: int
    depth: int
    columns: int
    order: str = "NN"

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Case:
        """Return the case that `dataclasses.asdict` wrote, after a way through JSON."""
        return cls(**fields)

    @property
    def flops(self) -> float:
        """The multiplications and additions."""
        return 2.0 * self.rows * self.depth * self.columns

    @property
    def bytes(self) -> float:
        """The bytes that must at least be read and written."""
        parts = self.rows * self.depth, self.depth * self.columns, self.rows * self.columns
        return 4.0 * sum(parts)

    def __str__(self) -> str:
        return f"{self.rows}x{self.depth}x{self.columns},{self.order}"


# The linear layers of transformers and classifiers, then a few rows of large weights.
PRODUCTS = (
    (64, 512, 512),
    (128, 768, 768),
    (197, 768, 3072),
    (1024, 768, 3072),
    (1024, 3072, 768),
    (2048, 2048, 2048),
)
FEW_ROWS = tuple((rows, 4096, 4096) for rows in (1, 2, 4, 8, 16))
CASES = (
    *(Case(*size, order) for size in PRODUCTS for order in ORDERS),
    *(Case(*size, order) for size in FEW_ROWS for order in ORDERS[:2]),
)
QUICK = (Case(64, 96, 128), Case(4, 256, 256, "NT"))


def parse_case(text: str) -> Case:
    """Return the case that text such as 64x512x512,NT describes. Raises InvalidArgument."""
    found = re.fullmatch(r"(\d{1,6})x(\d{1,6})x(\d{1,6})(?:,(NN|NT|TN))?", text)
    if found is None or "0" in found.groups()[:3]:
        raise InvalidArgument(
            f"expected rows x depth x columns and an order, such as 64x512x512,NT; got {text!r}"
        )
    rows, depth, columns = map(int, found.groups()[:3])
    return Case(rows, depth, columns, found[4] or "NN")


@dataclass(frozen=True, slots=True)
class Operands:
    """The arrays of a case, as views that lie in its order. Every peer draws the same values."""

    a: Array
    b: Array

    @classmethod
    def of(cls, case: Case) -> Operands:
        """Return numbers around zero; results are near 1."""
        draw = numpy.random.default_rng(0)
        shapes = (case.rows, case.depth), (case.depth, case.columns)
        a, b = (
            _matrix(draw, shape, order) for shape, order in zip(shapes, case.order, strict=True)
        )
        b *= numpy.float32((12.0 / case.depth) ** 0.5)
        return cls(a, b)


def _matrix(draw: numpy.random.Generator, shape: tuple[int, int], order: str) -> Array:
    lying = shape if order == "N" else shape[::-1]
    values: Array = draw.random(out=aligned(lying), dtype=numpy.float32)
    values -= 0.5
    return values if order == "N" else values.T
