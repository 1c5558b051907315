"""PyTorch with `bestof.torch.enable()`, or with one algorithm for all convolutions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

import bestof.torch as integration
from bestof.bench.model.peers.eager import inference, laid_out
from bestof.bench.model.peers.prepared import Prepared, Run
from bestof.bench.model.step import TrainingStep
from bestof.errors import BestofWarning
from bestof.torch.ops.convolution.direction import DIRECTIONS


def prepare(
    model: nn.Module,
    example: Tensor,
    _threads: int,
    *,
    channels_last: bool = False,
    row: str | None = None,
) -> Prepared:
    """Enable bestof for the process, and return the model; it settles in its first calls.

    row: computes every pass of every convolution that it can, and PyTorch's own kernels compute all
    others; None for a choice.
    """
    model, example = laid_out(model, example, channels_last)
    return _prepared(inference(model, example), row)


def prepare_training(
    model: nn.Module,
    step: TrainingStep,
    _threads: int,
    *,
    channels_last: bool = False,
    row: str | None = None,
) -> Prepared:
    """Do the same for a step of training."""
    model, images = laid_out(model, step.images, channels_last)
    return _prepared(step.on(model, images), row)


def _prepared(run: Run, row: str | None) -> Prepared:
    enable = partial(integration.enable, {"kernel": _kernel(row)})
    enable()

    @contextmanager
    def replaced() -> Iterator[Run]:
        integration.disable()
        try:
            yield run
        finally:
            enable()

    return Prepared(run, _trials, replaced)


def _kernel(row: str | None) -> dict[str, Any]:
    """Return the configuration of kernels, and give the orders for one row."""
    # With a budget, calls without a trial would be taken for settled ones.
    if row is None:
        return {"budget": None, "cuda": True}
    orders = [f"convolution {direction}={row}" for direction in DIRECTIONS]
    os.environ["BESTOF_FORCE"] = ",".join((*orders, "convolution layer=independent"))
    warnings.simplefilter("ignore", BestofWarning)  # that other operations lack the row
    nothing_else = {"pooling": False, "product": False, "attention": False}
    return {"budget": None, "only": [row], **nothing_else}


def _trials() -> int:
    return integration.summary().trials
