"""The parts of a recipe: which settings are tried, in this order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from bestof.accuracy import Accuracy
from bestof.recipe.settings import Settings


@dataclass(frozen=True, slots=True)
class Facts:
    """What a run of the script has shown about it.

    threads: the computing threads. processors: how many the process may use. convolutions: whether
    a model has convolutions in channels first. loaders: whether it has a DataLoader without
    workers. optimizer: whether it has an optimizer with a fused form.
    """

    threads: int
    processors: int
    convolutions: bool
    loaders: bool
    optimizer: bool


Values: TypeAlias = Callable[[Facts], Iterator[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Part:
    """One part. `values` are the candidates; each changes the settings that stand before it.

    exact: whether the part changes no bit of a result. floor: whether it may take all the time that
    is left, because a recipe promises at least this. A part that does not apply has no values.
    """

    name: str
    values: Values
    exact: bool = False
    floor: bool = False


def _always(*values: dict[str, Any]) -> Values:
    return lambda _: iter(values)


def _threads(facts: Facts) -> Iterator[dict[str, Any]]:
    tried = (facts.processors, facts.processors // 2, 1)
    for threads in dict.fromkeys(tried):
        if threads >= 1 and threads != facts.threads:
            yield {"threads": threads}


def _workers(facts: Facts) -> Iterator[dict[str, Any]]:
    workers = 1
    while facts.loaders and workers <= facts.processors:
        yield {"workers": workers}
        workers *= 2


def _workers_and_threads(facts: Facts) -> Iterator[dict[str, Any]]:
    """Leave the processors of the workers to them."""
    workers = 1
    while facts.loaders and workers < facts.processors:
        yield {"workers": workers, "threads": facts.processors - workers}
        workers *= 2


def _layout(facts: Facts) -> Iterator[dict[str, Any]]:
    if facts.convolutions:
        yield {"channels_last": True}


def _optimizer(facts: Facts) -> Iterator[dict[str, Any]]:
    if facts.optimizer:
        yield {"fused_optimizer": True}


ENABLED = {"kernels": True, "products": True, "attention": True, "keep_freed": True}
"""What `bt.enable()` sets."""

PARTS = (
    # At first together: three gains of 1 % are confirmed that none would be alone.
    Part("enable", _always(ENABLED), floor=True),
    Part("kernels", _always({"kernels": True})),
    Part("products", _always({"kernels": True, "products": True})),
    Part("attention", _always({"kernels": True, "attention": True})),
    Part("memory", _always({"keep_freed": True}), exact=True),
    Part("layout", _layout),
    Part("threads", _threads),
    Part("data loading", _workers, exact=True),
    Part("data loading and threads", _workers_and_threads),
    Part("optimizer", _optimizer),
    Part("leave out", _always({"products": False}, {"attention": False}, {"keep_freed": False})),
)


def parts_of(accuracy: Accuracy) -> tuple[Part, ...]:
    """Return the parts that an accuracy allows. Only `relaxed` allows a part for precision."""
    if accuracy == "exact":
        return tuple(part for part in PARTS if part.exact)
    if accuracy == "relaxed":
        return (*PARTS, Part("precision", _always({"kernels": True, "accuracy": "relaxed"})))
    return PARTS


def candidate(standing: Settings, values: dict[str, Any]) -> Settings | None:
    """Return the settings with these values; None if they stand already."""
    made = replace(standing, **values)
    return None if made == standing else made
