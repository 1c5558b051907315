"""Places in the arena: separate for values that live at the same time, shared otherwise."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bestof.torch.plan.memory.arena import Arena, Buffer, plan_offsets

BUFFERS = st.lists(
    st.tuples(st.integers(1, 500), st.integers(0, 12), st.integers(0, 6)).map(
        lambda t: Buffer(t[0], t[1], t[1] + t[2])
    ),
    max_size=14,
)


@given(BUFFERS)
def test_living_buffers_lie_apart(buffers: list[Buffer]) -> None:
    floats = plan_offsets(buffers)
    for one in buffers:
        assert one.offset >= 0
        assert one.offset + one.floats <= floats
        assert one.offset % 16 == 0  # a cache line
        for other in buffers:
            if one is not other and one.first <= other.last and other.first <= one.last:
                assert (
                    one.offset + one.floats <= other.offset
                    or other.offset + other.floats <= one.offset
                )


def test_a_chain_needs_two_places() -> None:
    chain = [Buffer(640, step, step + 1) for step in range(10)]
    assert plan_offsets(chain) == 2 * 640


def test_nothing_needs_nothing() -> None:
    assert plan_offsets([]) == 0


def test_views_have_the_asked_layout() -> None:
    for floats in (240, 3 * 2**20):  # ordinary memory, huge pages
        buffer = Buffer(240, 0, 0, floats - 240)
        arena = Arena(floats)
        rows = arena.view(buffer, (2, 3, 5, 8), True)
        assert rows.is_contiguous(memory_format=torch.channels_last)
        plain = arena.view(buffer, (2, 3, 5, 8), False)
        assert plain.is_contiguous()
        assert rows.data_ptr() == plain.data_ptr()
        assert arena.view(Buffer(8, 0, 0), (8,), False).data_ptr() % 64 == 0
        rows.fill_(3.0)
        assert plain.eq(3.0).all()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # since Python 3.12, of any thread
def test_a_forked_process_has_memory_of_its_own() -> None:
    arena = Arena(1 << 20)  # large enough for pages of its own
    view = arena.view(Buffer(8, 0, 0), (8,), channels_last=False)
    child = os.fork()
    if child == 0:
        view[0] = 7.0
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert view.tolist() == [0.0] * 8
