"""Lets PyTorch compute on one thread, so that the times of kernels can be compared.

Beside busy processes, threads wait for each other. Where 15 processes wanted two processors, MKL's
product on two threads took from 1.4 to 13 times as long as bestof's, and float16 from 2.5 to 220
times as long as float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread meanwhile. MKL keeps the number of afterwards: use it at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
