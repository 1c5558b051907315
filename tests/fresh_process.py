"""The state of a process that has just begun, for tests of the integration into PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import bestof
import bestof.torch
from bestof.torch.dispatch.overrides import _Made
from bestof.torch.ops import table
from bestof.torch.plan import admission
from bestof.torch.plan.steps import convolution_step, raced_step

# They are made once, with the policy of that moment.
SELECTORS = (
    convolution_step.selector,
    raced_step.selector,
)


def fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have no store, one thread, no decision and no override; PyTorch's own kernels afterwards.

    Plans learn each new shape in its first call, so that the tests of what plans compute do not
    compare the model with itself.
    """
    monkeypatch.setattr(admission, "MEETINGS", 0)
    monkeypatch.setattr(admission, "PATIENCE", 0)
    for selector in SELECTORS:
        selector.cache_clear()
    monkeypatch.setattr(_Made, "overrides", ())
    # They keep what their calls have made.
    monkeypatch.setattr(table, "OPERATIONS", tuple(type(one)() for one in table.OPERATIONS))
    bestof.use_store(None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    bestof.torch.disable()
    bestof.use_policy(None)
