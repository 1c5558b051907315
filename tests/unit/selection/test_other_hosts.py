"""The decision of another host sets the order of the first trials, and decides nothing here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bestof import BestOf
from bestof.errors import StoreBusy
from bestof.selection.state.journal import TrialEntry
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.record import Evidence, Record


class Costs:
    """A clock that each alternative moves on by its cost."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def selector(self, store: MemoryStore, **costs: float) -> BestOf:
        def alternative(name: str):
            def run(problem: int) -> None:
                self.now += costs[name]

            return name, run

        alternatives = [alternative(name) for name in costs]
        return BestOf("it", alternatives, lambda n: n, clock=self, store=store, drift=False)


def settle(selector: BestOf) -> list[str]:
    """Call a selector until it has decided, and return what it tried, in order."""
    for _ in range(30):
        selector(0)
    return [e.alternative for e in selector.journal.entries() if isinstance(e, TrialEntry)]


@pytest.fixture
def store() -> MemoryStore:
    """A store in which another host has decided for b, before c and a."""
    other = MemoryStore()
    settle(Costs().selector(other, a=3.0, b=1.0, c=2.0))
    (record,) = other.records()
    assert record.decision == "b"
    made = MemoryStore()
    made.save(replace(record, host="another host"))
    return made


def test_the_winner_of_another_host_is_tried_first_and_wins_nothing(store: MemoryStore) -> None:
    selector = Costs().selector(store, a=1.0, b=3.0, c=2.0)
    assert settle(selector)[:3] == ["b", "c", "a"]
    assert (selector.explain(0).decision, selector.explain(0).source) == ("a", "measured")


def test_only_what_is_new_here_is_ordered_by_another_host(store: MemoryStore) -> None:
    settle(Costs().selector(store, a=1.0, b=3.0, c=2.0))
    asked = []
    store.elsewhere = lambda *key: asked.append(key)  # type: ignore[method-assign]  # a fake
    again = Costs().selector(store, a=1.0, b=3.0, c=2.0)
    again(0)
    assert again.explain(0).source == "stored"
    assert asked == []


@pytest.mark.parametrize(
    "record",
    [
        Record("it", "0", "another host", "gone", (Evidence("gone", "1", (1.0,)),), 1.0),
        Record("it", "0", "another host", "b", (), 1.0),
        Record("it", "0", "another host", "b", (Evidence("a", "1", (), "wrong"),), 1.0),
    ],
)
def test_a_strange_record_of_another_host_does_no_harm(record: Record) -> None:
    store = MemoryStore()
    store.save(record)
    selector = Costs().selector(store, a=1.0, b=3.0, c=2.0)
    tried = settle(selector)
    assert tried[0] == ("a" if record.decision == "gone" else "b")
    assert sorted(tried[:3]) == ["a", "b", "c"]
    assert selector.explain(0).decision == "a"


def test_a_late_answer_is_not_waited_for(store: MemoryStore) -> None:
    def late(*key: str) -> None:
        raise StoreBusy("ask again")

    store.elsewhere = late  # type: ignore[method-assign]  # a fake
    selector = Costs().selector(store, a=1.0, b=3.0, c=2.0)
    assert settle(selector)[:3] == ["a", "b", "c"]
    assert selector.explain(0).decision == "a"


def test_a_store_in_memory_finds_it_without_a_look_at_all_records(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new problem asks for it: a look at all records made each one dearer than the last."""
    (record,) = store.records()
    store.save(replace(record, host="third", updated=record.updated + 1.0))
    monkeypatch.setattr(store, "records", None)
    assert store.elsewhere("it", "0", "here") == replace(
        record, host="third", updated=record.updated + 1.0
    )
    assert store.elsewhere("it", "0", "third") == record
