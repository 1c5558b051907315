"""Takes a model and its inputs to the processes of engines, in a folder of files."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bestof.errors import TorchError
from bestof.torch.engines.flat import FlatModel

Inputs = tuple[list[Any], Any]
"""The flattened arguments of a call, and how they nest."""

_PICKLED, _EXPORTED = "model.pt", "model-{}.pt2"


def send(model: nn.Module, inputs: Sequence[Inputs], folder: Path) -> None:
    """Write a model with its inputs to a folder.

    A model whose classes another process cannot import, such as those of a script or a notebook, is
    exported by PyTorch. TorchError if it cannot be exported either.
    """
    kept = [(_detached(leaves), spec) for leaves, spec in inputs]
    if not any(type(one).__module__ == "__main__" for one in model.modules()):
        try:
            torch.save((model, kept), folder / _PICKLED)
        except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
            (folder / _PICKLED).unlink(missing_ok=True)
        else:
            return
    try:
        for place, (leaves, spec) in enumerate(kept):
            tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exported = torch.export.export(FlatModel(model, leaves, spec), tensors)
                torch.export.save(exported, folder / _EXPORTED.format(place))
    except Exception as error:  # what PyTorch raises for what it cannot export has no common root
        raise TorchError(
            f"{type(model).__name__} cannot be sent to the processes of engines: it can neither be "
            f"pickled nor exported: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
        ) from error


def receive(folder: Path) -> list[tuple[FlatModel, list[Tensor]]]:
    """Return the model for each of the inputs that `send` wrote, and the tensors of these."""
    if (folder / _PICKLED).exists():
        model, inputs = torch.load(folder / _PICKLED, weights_only=False)
        return [(FlatModel(model, *one), _tensors(one[0])) for one in inputs]
    found: list[tuple[FlatModel, list[Tensor]]] = []
    while (file := folder / _EXPORTED.format(len(found))).exists():
        exported = torch.export.load(file)
        tensors = list(exported.example_inputs[0])
        _, spec = torch.utils._pytree.tree_flatten((tuple(tensors), {}))
        found.append((FlatModel(exported.module(), tensors, spec), tensors))
    return found


def _detached(leaves: Sequence[Any]) -> list[Any]:
    return [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _tensors(leaves: Sequence[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
