"""torch.compile; weights are frozen. Its own backend needs a C++ compiler."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.engines.build import Call
from bestof.torch.engines.flat import FlatModel


def build(
    flat: FlatModel,
    tensors: Sequence[Tensor],
    _threads: int,
    _accuracy: Accuracy,
    *,
    mode: str | None = None,
    backend: str | None = None,
) -> Call:
    """Return the compiled model.

    mode: of PyTorch's own backend. backend: a package whose import adds a backend of its name.
    """
    compiled: Any
    if backend is not None:
        import_module(backend)
        compiled = torch.compile(flat, backend=backend, dynamic=False)
    else:
        options = torch._inductor.list_mode_options(mode) if mode else {}
        compiled = torch.compile(flat, options={**options, "freezing": True}, dynamic=False)

    def call(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        # Not `inference_mode`: weights are not frozen under it.
        with torch.no_grad():
            return compiled(*tensors)  # type: ignore[no-any-return]

    call(tensors)  # compiles
    return call
