"""Copies of a model around the same parameters and buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bestof.entries import entries
from bestof.torch.plan.trace.model_copy import copied_model


def twin_of(model: nn.Module) -> nn.Module:
    """Return a copy of the model around the same tensors, whose attributes may be changed."""
    memo: dict[int, Any] = {
        id(one): one for module in model.modules() for one in state_of(module).values()
    }
    return copied_model(model, memo)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module itself, not of its submodules."""
    own = {**module._parameters, **module._buffers}
    return {name: one for name, one in own.items() if one is not None}


class Twins:
    """Answers in place of a model, with the model's state at the first twin.

    A run may change attributes of a module: a table that grows, a counter. Such a twin is dropped,
    so that every run starts from the same state, as every run of a plan does. Each thread that
    runs at the same time has a twin of its own.
    """

    def __init__(self) -> None:
        self._original: nn.Module | None = None
        self._idle: list[tuple[nn.Module, _Attributes]] = []

    @property
    def are_new(self) -> bool:
        """Return whether no twin was made yet."""
        return self._original is None

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the model returns for these arguments, which it may change."""
        original = self._original
        if original is None:
            with torch.inference_mode(False):
                original = self._original = twin_of(model)
        try:
            twin, attributes = self._idle.pop()
        except IndexError:
            with torch.inference_mode(False):
                twin = twin_of(original)
            attributes = _Attributes(twin)
        result = twin(*args, **kwargs)
        if attributes.are_unchanged():
            self._idle.append((twin, attributes))
        return result

    def forget(self) -> None:
        """Drop all twins."""
        self._original, self._idle = None, []


class _Attributes:
    """The attributes of all modules of a model, by identity; of containers, also the length."""

    def __init__(self, model: nn.Module) -> None:
        owns = [vars(module) for module in model.modules()]
        owns += [one for own in owns for one in own.values() if isinstance(one, dict)]
        self._owns: list[tuple[Mapping[Any, Any], list[tuple[Any, Any]]]] = [
            (own, entries(own)) for own in owns
        ]
        self._lengths = [
            (one, len(one))
            for _, entries in self._owns
            for _, one in entries
            if isinstance(one, list | set | dict)
        ]

    def are_unchanged(self) -> bool:
        return all(
            len(own) == len(entries) and all(own.get(name, own) is one for name, one in entries)
            for own, entries in self._owns
        ) and all(len(one) == length for one, length in self._lengths)
