"""The selectors of a convolution layer: how each of them searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from bestof.accuracy import allows
from bestof.selection import Alternative, BestOf, Race, unless_shared
from bestof.selection.state.journal import Entry
from bestof.selection.trials.timer import Timer
from bestof.torch.convolution.alternative import Alternative as Row
from bestof.torch.convolution.catalogue import Catalogue
from bestof.torch.convolution.neighbourhood import Neighbourhood
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.overruns import Overruns
from bestof.torch.convolution.verifier import LayerVerifier, PassVerifier
from bestof.torch.dispatch.search import BY_PYTHON, PATIENCE, RACE, SEARCHES

Way: TypeAlias = tuple[str, list[Callable[..., Any]], Callable[[Any], bool] | None]
"""A way to compute a layer: its name, its forward and backward stage, and where it is tried."""


def pass_selector(
    name: str,
    catalogue: Catalogue,
    originals: Originals,
    version: Sequence[str],
    timer: Timer | None,
    listen: Callable[[Entry], None],
) -> BestOf:
    """Return the selector of one pass; it is called with a problem and the pass's tensors."""

    def bind(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda problem, *tensors: function(originals, *tensors, problem)

    def can_run(row: Row) -> Callable[[Any], bool]:
        return lambda problem: allows(problem.accuracy, row.accuracy) and row.supports(problem)

    def unpromising(name: str, problem: Any) -> str | None:
        if name in catalogue.promising(problem):
            return None
        estimates = catalogue.estimates(problem)
        return f"estimated at {estimates[name] / min(estimates.values()):.1f} times the cheapest"

    overruns = Overruns(catalogue)

    def heard(entry: Entry) -> None:
        overruns.listen(entry)
        listen(entry)

    return BestOf(
        name,
        [
            Alternative(
                row.name,
                bind(row.function),
                version,
                supports=can_run(row),
                unpromising=partial(unpromising, row.name),
                hopeless=None if place == 0 else partial(overruns.is_hopeless, row.name),
            )
            for place, row in enumerate(catalogue.alternatives)
        ],
        lambda problem, *_: problem,
        check=PassVerifier(catalogue, originals),
        on_event=heard,
        timer=timer,
        **_search(Neighbourhood(lambda problem: problem), _pass_policy(catalogue, timer)),
    )


def group_selector(
    name: str,
    ways: Sequence[Way],
    version: Sequence[str],
    verifier: LayerVerifier,
    listen: Callable[[Entry], None],
) -> BestOf:
    """Return the selector of whole layers; a stage is called with a layer and its tensors."""
    return BestOf(
        name,
        [Alternative(one, stages, version, supports=at) for one, stages, at in ways],
        lambda layer, *_: layer,
        check=verifier,
        on_event=listen,
        **_search(Neighbourhood(lambda layer: layer.convolution, lambda layer: layer[1:]), RACE),
    )


def _pass_policy(catalogue: Catalogue, timer: Timer | None) -> Race:
    if timer is not None:  # the device hides what Python takes
        return RACE
    first = catalogue.alternatives[0]
    by_python = [
        row.name for row in catalogue.alternatives if row is not first and row.compiled is None
    ]
    return replace(RACE, handicaps=tuple((name, BY_PYTHON) for name in by_python))


def _search(neighbourhood: Neighbourhood[Any], policy: Race) -> dict[str, Any]:
    """Return how a selector searches: by the policy of the process, or else by this race."""
    return {
        "policy": unless_shared(policy),
        "neighbours": neighbourhood,
        "patience": PATIENCE,
        "max_searches": SEARCHES,
    }
