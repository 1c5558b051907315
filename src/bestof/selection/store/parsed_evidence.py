"""Evidence from values that were parsed from JSON, and may be anything."""

from __future__ import annotations

from typing import Any

from bestof.selection.store.record import Child, Evidence

_INFINITE = float("inf")


def parsed_evidence(
    alternative: Any, version: Any, samples: Any, disqualified: Any, children: Any
) -> Evidence:
    """Return the evidence of these values. Raises ValueError if one has another type.

    Samples are finite numbers from 0 on. So is every number that a store of bestof has written.
    """
    if type(alternative) is not str or type(version) is not str:
        raise ValueError("a name is not a text")
    if disqualified is not None and type(disqualified) is not str:
        raise ValueError("the reason of a disqualification is not a text")
    if type(samples) is not list or type(children) is not list:
        raise ValueError("samples and children are not lists")
    return Evidence(
        alternative,
        version,
        tuple([_sample(value) for value in samples]),
        disqualified,
        tuple([_child(value) for value in children]),
    )


def _sample(value: Any) -> float:
    try:
        if type(value) in (float, int) and 0.0 <= value < _INFINITE:
            return float(value)
    except OverflowError:  # an integer of more than 308 digits
        pass
    raise ValueError("a sample is not a finite number of seconds")


def _child(value: Any) -> Child:
    if type(value) is not list or [type(one) for one in value] != [str, str]:
        raise ValueError("a child is not a pair of texts")
    return Child(*value)
