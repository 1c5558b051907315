"""The device that models are measured on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch

from bestof.bench.model.peers.prepared import Prepared, Run
from bestof.errors import InvalidArgument

DEVICES = ("cpu", "cuda")


def check_device(name: str) -> None:
    """Raise InvalidArgument if this machine has no such device."""
    if name not in DEVICES:
        raise InvalidArgument(f"--device: expected one of {', '.join(DEVICES)}; got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        backend: Any = torch.backends.cuda  # has no annotations
        built = "sees no CUDA device" if backend.is_built() else "was built without CUDA"
        raise InvalidArgument(
            f"--device cuda: PyTorch {torch.__version__} {built}; "
            "use --device cpu, or a machine where torch.cuda.is_available() is true"
        )


def waited_for(prepared: Prepared, device: str) -> Prepared:
    """Return the same model with calls that end only when the device has finished."""
    if device == "cpu":
        return prepared
    replaced = prepared.replaced
    return replace(
        prepared,
        run=_waited(prepared.run),
        replaced=None if replaced is None else lambda: _replaced(replaced),
    )


def _waited(run: Run) -> Run:
    def waited() -> Any:
        result = run()
        torch.cuda.synchronize()
        return result

    return waited


@contextmanager
def _replaced(original: Callable[[], AbstractContextManager[Run]]) -> Iterator[Run]:
    with original() as run:
        yield _waited(run)
