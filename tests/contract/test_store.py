"""The promises of every store. One table lists the stores.

All promises are in this one file, because a new store must keep them all: it adds a row.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bestof.errors import BestofWarning, StoreError
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.postgresql import PostgresqlStore
from bestof.selection.store.protocol import Store
from bestof.selection.store.record import Child, Evidence, Pin, Record
from bestof.selection.store.sqlite import SqliteStore
from postgresql_server import shared

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "decisions.sqlite"),
    "postgresql": lambda folder: PostgresqlStore(shared().empty_url()),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = STORES[request.param](tmp_path)
    yield made
    made.close()


RECORD = Record(
    "conv2d",
    "(1, 3)",
    "a host",
    "im2row",
    (
        Evidence(
            "winograd",
            "2.1",
            (0.1 + 0.2, 1e-9, 1e300),
            None,
            (Child("matmul", "(3, 3)"), Child("x", "None")),
        ),
        Evidence("im2row", "", (1 / 3,)),
        Evidence("fft", "1", (), "RuntimeError: no plan für ∞\n"),
    ),
    1_795_249_000.123456,
)


def record(
    selector: str = "s",
    problem: str = "p",
    host: str = "h",
    decision: str | None = None,
    **times: float,
):
    evidence = tuple(Evidence(name, "1", (seconds,)) for name, seconds in times.items())
    return Record(selector, problem, host, decision, evidence, 1.0)


def test_a_record_comes_back_exactly(store: Store) -> None:
    store.save(RECORD)
    assert store.load(*RECORD.key) == RECORD
    assert list(store.records()) == [RECORD]


def test_text_that_utf8_cannot_hold_is_kept_in_some_form(store: Store) -> None:
    store.save(replace(record(decision="b"), evidence=(Evidence("a", "1", (), "no file \udcff"),)))
    loaded = store.load("s", "p", "h")
    assert loaded is not None
    assert loaded.evidence[0].disqualified in ("no file \udcff", "no file \\udcff")
    assert loaded.decision == "b"


@pytest.mark.parametrize(
    "changed",
    [
        *({"updated": value} for value in (math.nan, math.inf, -math.inf, 10**400, None, "now")),
        *({"evidence": (Evidence("a", "1", (value,)),)} for value in (math.nan, math.inf, -1.0)),
        *({"evidence": (Evidence("a", "1", (value,)),)} for value in (10**400, True, "1", None)),
        *({"evidence": (item,)} for item in (Evidence("a", 1), Evidence(None, "1"))),
        {"evidence": (Evidence("a", "1", (1.0,), 7),)},
        {"evidence": (Evidence("a", "1", (1.0,), None, (Child("b", 1),)),)},
        *({"problem": b"p"}, {"host": None}, {"decision": 1}),
    ],
)
def test_a_record_that_cannot_be_written_is_told_once_and_changes_nothing(
    store: Store, changed: dict[str, Any]
) -> None:
    store.save(RECORD)
    wrong = replace(RECORD, **changed)
    with pytest.warns(BestofWarning, match="is not kept, because") as told:
        store.save(wrong)
    store.save(wrong)  # a second warning would be an error
    assert len(told) == 1
    with pytest.raises(StoreError, match=r"cannot be kept.*nothing was changed"):
        store.unite([record(a=1.0), wrong])
    assert store.flush(60.0)
    assert store.contents() == ([RECORD], [])


def test_an_unknown_record_is_none(store: Store) -> None:
    store.save(record())
    assert store.load("s", "p", "other host") is None
    assert store.load("s", "other", "h") is None
    assert store.load("other", "p", "h") is None


def test_the_newest_decision_of_another_host_is_found(store: Store) -> None:
    made = [
        Record("s", "p", "here", "a", (), 9.0),
        Record("s", "p", "old", "b", (Evidence("b", "1", (1.0,)),), 1.0),
        Record("s", "p", "new", "c", (Evidence("c", "1", (1.0,)), Evidence("b", "1")), 2.0),
        Record("s", "p", "undecided", None, (), 3.0),
        Record("s", "q", "other problem", "d", (), 4.0),
        Record("t", "p", "other selector", "e", (), 5.0),
    ]
    for one in made:
        store.save(one)
    assert store.flush(60.0)
    assert store.elsewhere("s", "p", "here") == made[2]
    assert store.elsewhere("s", "p", "new") == made[0]
    assert store.elsewhere("s", "q", "other problem") is None
    assert store.elsewhere("none", "p", "here") is None


def test_evidence_is_replaced_alternative_by_alternative(store: Store) -> None:
    store.save(record(a=1.0, b=2.0))
    store.save(record(b=3.0, c=4.0))
    loaded = store.load("s", "p", "h")
    assert loaded is not None
    assert [(item.alternative, item.samples) for item in loaded.evidence] == [
        ("a", (1.0,)),
        ("b", (3.0,)),
        ("c", (4.0,)),
    ]


def test_evidence_of_another_version_replaces(store: Store) -> None:
    store.save(record(a=1.0))
    newer = Evidence("a", "2", (9.0, 9.0))
    store.save(replace(record(), evidence=(newer,)))
    loaded = store.load("s", "p", "h")
    assert loaded is not None
    assert loaded.evidence == (newer,)


def test_evidence_stays_where_a_later_search_left_the_alternative_out(store: Store) -> None:
    store.save(record(a=1.0, b=2.0))
    left_out, changed = Evidence("b", "1"), Evidence("a", "2")
    store.save(replace(record(), evidence=(left_out, changed, Evidence("c", "1"))))
    loaded = store.load("s", "p", "h")
    assert loaded is not None
    assert loaded.evidence == (changed, Evidence("b", "1", (2.0,)), Evidence("c", "1"))


def test_the_last_of_two_evidences_of_one_alternative_counts(store: Store) -> None:
    first, last = Evidence("a", "1", (1.0,)), Evidence("a", "1", (2.0,))
    store.save(replace(record(), evidence=(first, Evidence("b", "1"), last)))
    loaded = store.load("s", "p", "h")
    assert loaded is not None
    assert loaded.evidence == (last, Evidence("b", "1"))


def test_a_decision_is_replaced_by_a_decision_only(store: Store) -> None:
    store.save(record(decision="a"))
    store.save(replace(record(decision=None), updated=2.0))
    loaded = store.load("s", "p", "h")
    assert loaded is not None
    assert (loaded.decision, loaded.updated) == ("a", 2.0)
    store.save(record(decision="b"))
    loaded = store.load("s", "p", "h")
    assert loaded is not None
    assert loaded.decision == "b"


@pytest.mark.parametrize("decision", [None, "a"])
def test_a_decision_is_withdrawn_when_its_alternative_is_disqualified(
    store: Store, decision: str | None
) -> None:
    store.save(record(decision="a", a=1.0))
    store.save(replace(record(decision=decision), evidence=(Evidence("a", "1", (), "wrong by 3"),)))
    loaded = store.load("s", "p", "h")
    assert loaded is not None
    assert loaded.decision is None


def test_the_disqualification_of_another_leaves_the_decision(store: Store) -> None:
    store.save(record(decision="a", a=1.0))
    store.save(replace(record(), evidence=(Evidence("b", "1", (), ""),)))
    loaded = store.load("s", "p", "h")
    assert loaded is not None
    assert loaded.decision == "a"


def test_records_are_sorted_by_selector_problem_and_host(store: Store) -> None:
    keys = [
        ("b", "1", "x"),
        ("a", "2", "y"),
        ("a", "2", "x"),
        ("a", "10", "z"),
        ("ä", "", ""),
        ("\U0001f600", "\uffff", ""),
    ]
    for key in keys:
        store.save(Record(*key, "first", (), 1.0))
    assert [found.key for found in store.records()] == sorted(keys)
    assert [found.key for found in store.records("a")] == [
        ("a", "10", "z"),
        ("a", "2", "x"),
        ("a", "2", "y"),
    ]
    assert list(store.records("none such")) == []


def test_clear_forgets_and_counts(store: Store) -> None:
    for selector, problem in (("a", "1"), ("a", "2"), ("b", "1")):
        store.save(record(selector, problem, x=1.0))
    store.pin("a", "x")
    assert store.clear("none such") == 0
    assert store.clear("a") == 2
    assert [found.selector for found in store.records()] == ["b"]
    assert store.clear() == 1
    assert list(store.records()) == []
    assert store.clear() == 0
    assert store.pinned("a", "1") == "x"
    store.save(record("a", "1", y=1.0))
    loaded = store.load("a", "1", "h")
    assert loaded is not None
    assert [item.alternative for item in loaded.evidence] == ["y"], (
        "evidence of a forgotten record came back"
    )


def test_the_closest_pin_counts(store: Store) -> None:
    assert store.pinned("s", "p", "h") is None
    for alternative, problem, host in (
        ("all", None, None),
        ("at h", None, "h"),
        ("p", "p", None),
        ("p at h", "p", "h"),
    ):
        store.pin("s", alternative, problem, host)
    found = {(p, h): store.pinned("s", p, h) for p in ("p", "q", None) for h in ("h", "i", None)}
    assert found == {
        ("p", "h"): "p at h",
        ("p", "i"): "p",
        ("p", None): "p",
        ("q", "h"): "at h",
        ("q", "i"): "all",
        ("q", None): "all",
        (None, "h"): "at h",
        (None, "i"): "all",
        (None, None): "all",
    }
    assert store.pinned("t", "p", "h") is None


def test_pins_are_replaced_listed_and_taken_back(store: Store) -> None:
    store.pin("s", "a", "p")
    store.pin("s", "b", "p")
    store.pin("s", "c")
    store.pin("r", "d", "", "h")
    store.pin("r", "e", None, "h")
    assert store.pins() == [
        Pin("r", "e", None, "h"),
        Pin("r", "d", "", "h"),
        Pin("s", "c"),
        Pin("s", "b", "p"),
    ]
    assert store.pins("s") == [Pin("s", "c"), Pin("s", "b", "p")]
    assert store.unpin("s", "p") is True
    assert store.unpin("s", "p") is False
    assert store.unpin("s", "p", "h") is False
    assert store.pinned("s", "p") == "c"


def test_threads_that_save_and_load_at_once_lose_nothing(store: Store) -> None:
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            start.wait()
            for step in range(20):
                store.save(record("s", str(step), decision="x", **{f"t{number}": 1.0}))
                loaded = store.load("s", str(step), "h")
                assert loaded is not None
                assert f"t{number}" in {item.alternative for item in loaded.evidence}
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [len(found.evidence) for found in store.records()] == [8] * 20


def test_a_flush_writes_all_records(store: Store) -> None:
    assert store.flush() is True
    store.save(RECORD)
    assert store.flush(60.0) is True
    assert store.records() == [RECORD]


def test_a_union_merges_records_and_pins(store: Store) -> None:
    store.save(replace(record(decision="a", a=1.0, b=3.0), updated=2.0))
    store.pin("s", "a")
    older = replace(record(decision="b", b=2.0, c=4.0), updated=1.0)
    other = record(problem="q", decision="c", c=1.0)
    pins = [Pin("s", "b"), Pin("s", "c", "q")]
    assert store.unite([older, other], pins, theirs=False) == 1
    assert store.pins() == [Pin("s", "a"), Pin("s", "c", "q")]
    assert store.unite([older, other], pins) == 0
    assert store.pins() == [Pin("s", "b"), Pin("s", "c", "q")]
    first, second = store.records()
    assert second == other
    assert (first.decision, first.updated) == ("a", 2.0)
    assert {item.alternative: item.samples for item in first.evidence} == {
        "a": (1.0,),
        "b": (3.0,),
        "c": (4.0,),
    }


def test_closing_twice_is_harmless(store: Store) -> None:
    store.save(record())
    store.close()
    store.close()


_TEXTS = st.sampled_from(["", "a", "b", "(1, 2)", "é\0", "'; DROP TABLE record; --"])
_TIMES = st.lists(st.floats(min_value=0, allow_nan=False, allow_infinity=False), max_size=4).map(
    tuple
)
_EVIDENCE = st.builds(
    Evidence,
    alternative=st.sampled_from(["a", "b", "c"]),
    version=st.sampled_from(["1", "2"]),
    samples=_TIMES,
    disqualified=st.none() | st.just("raised"),
    children=st.lists(st.builds(Child, _TEXTS, _TEXTS), max_size=2).map(tuple),
)
_RECORDS = st.builds(
    Record,
    selector=_TEXTS,
    problem=_TEXTS,
    host=st.sampled_from(["h", "i"]),
    decision=st.none() | st.sampled_from(["a", "b", "c"]),
    evidence=st.lists(_EVIDENCE, max_size=4).map(tuple),
    updated=st.floats(allow_nan=False, allow_infinity=False),
)
_PLACES = st.none() | st.sampled_from(["", "a"])


class StoreAgainstDict(RuleBasedStateMachine):
    """A store, through any number of reopenings, against a dict that is written down here once
    more."""

    def open(self) -> Store:
        """Open the store again; the first time, an empty one."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.store = self.open()
        self.heads: dict[tuple[str, str, str], tuple[str | None, float]] = {}
        self.evidence: dict[tuple[str, str, str], dict[str, Evidence]] = {}
        self.pins: dict[tuple[str, str | None, str | None], str] = {}

    @rule(new=_RECORDS)
    def save(self, new: Record) -> None:
        self.store.save(new)
        items = self.evidence.setdefault(new.key, {})
        decision = self.heads.get(new.key, (None, 0.0))[0] if new.decision is None else new.decision
        for item in new.evidence:
            old = items.get(item.alternative)
            said = item.samples or item.disqualified is not None
            if old is None or said or item.version != old.version:
                items[item.alternative] = item
            if item.disqualified is not None and item.alternative == decision:
                decision = None
        self.heads[new.key] = (decision, new.updated)

    @rule(selector=st.none() | _TEXTS)
    def clear(self, selector: str | None) -> None:
        gone = [key for key in self.heads if selector in (None, key[0])]
        assert self.store.clear(selector) == len(gone)
        for key in gone:
            del self.heads[key], self.evidence[key]

    @rule(selector=_TEXTS, problem=_PLACES, host=_PLACES, alternative=st.sampled_from("ab"))
    def pin(self, selector: str, problem: str | None, host: str | None, alternative: str) -> None:
        self.store.pin(selector, alternative, problem, host)
        self.pins[selector, problem, host] = alternative

    @rule(selector=_TEXTS, problem=_PLACES, host=_PLACES)
    def unpin(self, selector: str, problem: str | None, host: str | None) -> None:
        expected = self.pins.pop((selector, problem, host), None) is not None
        assert self.store.unpin(selector, problem, host) is expected

    @rule()
    def flush(self) -> None:
        assert self.store.flush(60.0)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    @invariant()
    def is_the_same(self) -> None:
        expected = [
            Record(*key, self.heads[key][0], tuple(self.evidence[key].values()), self.heads[key][1])
            for key in sorted(self.heads)
        ]
        assert list(self.store.records()) == expected
        assert [self.store.load(*one.key) for one in expected] == expected
        assert {
            (pin.selector, pin.problem, pin.host): pin.alternative for pin in self.store.pins()
        } == self.pins

    def teardown(self) -> None:
        self.store.close()


class SqliteAgainstDict(StoreAgainstDict):
    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()

    def open(self) -> Store:
        return SqliteStore(Path(self.folder.name) / "decisions.sqlite")

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class PostgresqlAgainstDict(StoreAgainstDict):
    def __init__(self) -> None:
        super().__init__()
        self.url = shared().empty_url()

    def open(self) -> Store:
        return PostgresqlStore(self.url)


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=20,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


SqliteAgainstDict.TestCase.settings = _settings(25)
PostgresqlAgainstDict.TestCase.settings = _settings(10)
TestSqliteAgainstDict = SqliteAgainstDict.TestCase
TestPostgresqlAgainstDict = PostgresqlAgainstDict.TestCase
