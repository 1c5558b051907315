"""The operations of torch.distributed that a rank has called."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed, nn

from bestof.cli.scale_trial import exchanges


@pytest.fixture
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def counted() -> int:
    found = exchanges()
    assert found is not None
    return found


@pytest.mark.usefixtures("group")
def test_steps_of_a_model_count_only_if_its_gradients_are_exchanged() -> None:
    alone, images = nn.Linear(4, 4), torch.ones(2, 4)
    model = nn.parallel.DistributedDataParallel(alone)
    before = counted()
    alone(images).sum().backward()
    assert counted() == before
    model(images).sum().backward()
    assert counted() > before


@pytest.mark.usefixtures("group")
def test_operations_of_smaller_groups_count() -> None:
    smaller = distributed.new_group([0])
    before = counted()
    distributed.all_reduce(torch.ones(1), group=smaller)
    assert counted() > before
