"""A store that answers late: calls continue without its evidence, and ask again."""

from __future__ import annotations

import pytest

from bestof import BestOf
from bestof.errors import StoreBusy
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.record import Evidence, Record


class LateStore(MemoryStore):
    """A store in memory that answers nothing while it is `busy`."""

    busy = True
    asked = 0

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        self.asked += 1
        if self.busy:
            raise StoreBusy("ask again")
        return super().load(selector, problem, host)

    def pinned(self, selector: str, problem: str | None, host: str | None = None) -> str | None:
        if self.busy:
            raise StoreBusy("ask again")
        return super().pinned(selector, problem, host)


ALTERNATIVES = [("a", lambda n: "a"), ("b", lambda n: "b")]


def decided(store: LateStore) -> None:
    """Fill the store with the decision for b that a run with these times makes."""
    store.busy = False
    times = iter([2.0, 0.0, 1.0, 0.0] * 3)
    now = [0.0]

    def clock() -> float:
        now[0] += next(times, 0.0)
        return now[0]

    earlier = BestOf("it", ALTERNATIVES, lambda n: n, rounds=3, store=store, clock=clock)
    while earlier.explain(1).decision is None:
        earlier(1)
    (record,) = store.records()
    store.clear()
    evidence = tuple(
        Evidence(one.alternative, one.version, (2.0 if one.alternative == "a" else 1.0,) * 3)
        for one in record.evidence
    )
    store.save(Record(*record.key, "b", evidence, record.updated))
    store.busy = True


def test_evidence_that_comes_late_is_taken() -> None:
    store = LateStore()
    decided(store)
    selector = BestOf("it", ALTERNATIVES, lambda n: n, store=store)
    for _ in range(3):
        selector(1)
        assert selector.explain(1).decision is None
    asked = store.asked
    assert asked >= 3, "every call asks again"
    store.busy = False
    assert [selector(1) for _ in range(3)] == ["b"] * 3
    assert selector.explain(1).source == "stored"


def test_a_pin_that_comes_late_is_obeyed() -> None:
    store = LateStore()
    store.pin("it", "b")
    selector = BestOf("it", ALTERNATIVES, lambda n: n, store=store)
    selector(1)
    store.busy = False
    assert [selector(1) for _ in range(3)] == ["b"] * 3
    assert selector.explain(1).source == "pinned"


def test_a_store_that_never_answers_costs_no_decision() -> None:
    selector = BestOf("it", ALTERNATIVES, lambda n: n, rounds=3, store=LateStore())
    for _ in range(200):
        selector(1)
    assert selector.explain(1).decision is not None
    assert selector.explain(1).source == "measured"


def test_the_pass_of_a_group_ends_with_the_alternative_that_began_it() -> None:
    store = LateStore()
    store.pin("it", "b")
    pairs = [(name, [lambda n, m=name: m, lambda n, m=name: m]) for name in "ab"]
    selector = BestOf("it", pairs, lambda n: n, store=store)
    first = selector(0, 1)
    store.busy = False
    assert selector(1, 1) == first == "a"
    assert [selector(stage, 1) for stage in (0, 1)] == ["b", "b"]


@pytest.mark.parametrize("failure", ["load", "pinned"])
def test_a_busy_store_is_not_given_up(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LateStore()
    decided(store)
    store.busy = False

    def busy(*place: object) -> None:
        raise StoreBusy("ask again")

    with monkeypatch.context() as patch:
        patch.setattr(store, failure, busy)
        selector = BestOf("it", ALTERNATIVES, lambda n: n, store=store)
        selector(1)
        assert selector.explain(1).source != "stored" or failure == "pinned"
    assert [selector(1) for _ in range(3)] == ["b"] * 3
