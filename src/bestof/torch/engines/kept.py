"""Keeps what was measured of engines in the store of decisions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from time import monotonic, sleep, time
from typing import Any

import torch
from torch import Tensor, nn

from bestof.accuracy import Accuracy
from bestof.selection.identity.host import host
from bestof.selection.identity.problem import problem_text
from bestof.selection.state.decision_store import DecisionStore
from bestof.selection.store import default_store
from bestof.selection.store.record import Evidence, Record
from bestof.torch.engines.choice import EngineChoice, EngineResult
from bestof.torch.engines.engine import Engine

SELECTOR = "optimize engines"
_PATIENCE = 5.0  # seconds; a store that is busy answers later


def problem_of(model: nn.Module, structure: str, leaves: Sequence[Any], accuracy: Accuracy) -> str:
    """Return the text under which a model's engines for some inputs are kept.

    structure: see `structure_of`. The threads of the process belong to it.
    """
    inputs = tuple(
        (str(one.dtype), tuple(one.shape), tuple(one.stride()))
        if isinstance(one, Tensor)
        else repr(one)
        for one in leaves
    )
    return problem_text(
        (type(model).__name__, structure, inputs, torch.get_num_threads(), str(accuracy))
    )


def structure_of(model: nn.Module) -> str:
    """Return a digest of a model's modules, and of the shapes of its parameters and buffers.

    The values of these do not count. Nor does the code of the modules: if it changes, the choice
    may be an old one, and is compared with the model all the same.
    """
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        kind = type(module)
        digest.update(f"{name}|{kind.__module__}.{kind.__qualname__}|".encode())
        digest.update(f"{module.extra_repr()}\n".encode())
    for name, one in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name}|{one.dtype}|{tuple(one.shape)}|{one.stride()}\n".encode())
    return digest.hexdigest()[:16]


def load(problem: str, inputs: str, engines: Sequence[Engine]) -> EngineChoice | None:
    """Return what the store knows of these engines; None if one of them was not measured.

    An engine of another version was not measured.
    """
    store = DecisionStore(SELECTOR, default_store)
    record = store.load(problem)
    until = monotonic() + _PATIENCE
    while record is None and store.overdue and monotonic() < until:
        sleep(0.01)
        store.overdue = False
        record = store.load(problem)
    if record is None:
        return None
    known = {(one.alternative, one.version): one for one in record.evidence}
    found = [known.get((one.name, one.version)) for one in engines]
    results = [
        EngineResult(one.alternative, one.version, one.samples, reason=one.disqualified)
        for one in found
        if one is not None and (one.samples or one.disqualified is not None)
    ]
    if len(results) < len(engines):
        return None
    return EngineChoice(inputs, torch.get_num_threads(), tuple(results), stored=True)


def save(problem: str, choice: EngineChoice) -> None:
    """Keep a choice and its evidence."""
    evidence = tuple(
        Evidence(one.engine, one.version, one.samples, one.reason) for one in choice.results
    )
    decision = choice.engine if choice.ranking else None
    record = Record(SELECTOR, problem, host(), decision, evidence, time())
    DecisionStore(SELECTOR, default_store).save(record)
