"""The problem of a product: its layouts and its texts."""

from __future__ import annotations

import pytest
import torch
from product_case import random

from bestof.torch.ops.product.neighbourhood import Neighbourhood
from bestof.torch.ops.product.problem import ProductProblem, layout_of

PLAIN = ProductProblem("mm", 1, 128, 768, 3072)


@pytest.mark.parametrize(
    ("shape", "strides", "layout"),
    [
        ((3, 5), (5, 1), "rows"),
        ((3, 5), (8, 1), "strided rows"),
        ((3, 5), (1, 3), "columns"),
        ((3, 5), (1, 4), "strided columns"),
        ((1, 5), (9, 1), "rows"),
        ((3, 1), (1, 1), "rows"),
        ((3, 1), (1, 3), "rows"),
        ((1, 1), (7, 7), "rows"),
        ((1, 5), (1, 3), "strided columns"),
    ],
)
def test_layouts(shape: tuple[int, int], strides: tuple[int, int], layout: str) -> None:
    assert layout_of(shape, strides) == layout


def test_a_problem_is_read_from_its_operands() -> None:
    threads = torch.get_num_threads()
    assert ProductProblem.of("mm", random(4, 3), random(5, 3).t(), "float32") == ProductProblem(
        "mm", 1, 4, 3, 5, "rows", "columns", threads, "float32"
    )
    batched = ProductProblem.of("baddbmm", random(2, 4, 6)[..., :3], random(2, 3, 5), "relaxed")
    assert batched == ProductProblem(
        "baddbmm", 2, 4, 3, 5, "strided rows", "rows", threads, "relaxed"
    )
    assert batched.flops == 2 * 2 * 4 * 3 * 5


def test_texts_have_everything_that_distinguishes_problems() -> None:
    others = [
        PLAIN._replace(operation="addmm"),
        PLAIN._replace(operation="bmm"),
        PLAIN._replace(operation="bmm", batch=2),
        PLAIN._replace(m=1),
        PLAIN._replace(k=1),
        PLAIN._replace(n=1),
        PLAIN._replace(a_layout="columns"),
        PLAIN._replace(b_layout="columns"),
        PLAIN._replace(b_layout="strided rows"),
        PLAIN._replace(threads=2),
        PLAIN._replace(accuracy="relaxed"),
        PLAIN._replace(frozen=True),
        PLAIN._replace(dtype="bfloat16"),
        PLAIN._replace(dtype="float16"),
    ]
    assert str(PLAIN) == "mm m128,k768,n3072"
    assert str(others[2]) == "bmm b2,m128,k768,n3072"
    assert str(others[7]._replace(accuracy="relaxed")) == "mm m128,k768,n3072 b=columns relaxed"
    assert len({problem.canonical() for problem in (PLAIN, *others)}) == len(others) + 1


def test_neighbours_differ_in_their_sizes_alone() -> None:
    near = Neighbourhood()
    for problem in (
        PLAIN._replace(m=300),
        PLAIN._replace(m=129),
        PLAIN._replace(m=1024),
        PLAIN._replace(m=100, k=700),
        PLAIN._replace(b_layout="columns"),
        PLAIN._replace(threads=2),
    ):
        near(problem)
    assert list(near(PLAIN)) == [
        PLAIN._replace(m=129),
        PLAIN._replace(m=100, k=700),
        PLAIN._replace(m=300),
    ]
    assert PLAIN not in near(PLAIN)
    assert PLAIN in near(PLAIN._replace(m=128 * 4))
    assert PLAIN not in near(PLAIN._replace(m=128 * 4 + 1))


def test_few_rows_or_columns_are_neighbours_of_the_same_number_only() -> None:
    near = Neighbourhood()
    near(PLAIN._replace(m=2))
    near(PLAIN._replace(m=16))
    near(PLAIN._replace(n=2))
    assert list(near(PLAIN._replace(m=1))) == []
    assert list(near(PLAIN._replace(m=17))) == []
    assert list(near(PLAIN._replace(n=3))) == []
    assert list(near(PLAIN._replace(m=2, k=767))) == [PLAIN._replace(m=2)]


def test_the_memory_of_neighbours_is_limited() -> None:
    near = Neighbourhood()
    for m in range(1, 600):
        near(PLAIN._replace(m=m))
    assert PLAIN._replace(m=300) not in near(PLAIN._replace(m=320))
    assert PLAIN._replace(m=500) in near(PLAIN._replace(m=320))
    for threads in range(70):
        near(PLAIN._replace(threads=threads))
    assert len(near._kinds) <= 64
