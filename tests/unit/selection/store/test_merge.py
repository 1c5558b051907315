"""Merging records that changed separately."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bestof.selection.store.merge import merge
from bestof.selection.store.record import Evidence, Record


def record(updated: float, decision: str | None, *evidence: Evidence, problem: str = "p") -> Record:
    return Record("s", problem, "h", decision, evidence, updated)


def merged(ours: Record, theirs: Record) -> Record:
    (found,) = merge([ours], [theirs])
    assert [found] == merge([theirs], [ours])
    return found


def test_records_of_only_one_side_stay() -> None:
    ours, theirs = record(1.0, "a", problem="p"), record(2.0, "b", problem="o")
    assert merge([ours], [theirs]) == [theirs, ours]


def test_evidence_is_united_and_the_decision_is_the_newer() -> None:
    a, b, c = (Evidence(name, "1", (1.0,)) for name in "abc")
    assert merged(record(1.0, "a", a, b), record(2.0, "c", c, b)) == record(2.0, "c", a, b, c)


def test_the_older_decision_stays_where_the_newer_has_none() -> None:
    assert merged(record(1.0, "a"), record(2.0, None)).decision == "a"


def test_of_one_version_the_one_with_more_samples_stays() -> None:
    few, many = Evidence("a", "1", (1.0,)), Evidence("a", "1", (2.0, 2.0))
    assert merged(record(1.0, None, many), record(2.0, None, few)).evidence == (many,)


def test_of_two_versions_the_newer_record_counts() -> None:
    old, new = Evidence("a", "1", (1.0, 1.0, 1.0)), Evidence("a", "2", (2.0,))
    assert merged(record(1.0, None, old), record(2.0, None, new)).evidence == (new,)


def test_a_disqualification_stays_and_takes_the_decision_with_it() -> None:
    refused, fine = Evidence("a", "1", (), "wrong by 3"), Evidence("a", "1", (1.0, 1.0))
    b = Evidence("b", "1", (3.0,))
    assert merged(record(1.0, "b", refused, b), record(2.0, "a", fine)) == record(
        2.0, "b", refused, b
    )
    assert merged(record(1.0, None, refused), record(2.0, "a", fine)).decision is None


_RECORDS = st.lists(
    st.builds(
        Record,
        selector=st.just("s"),
        problem=st.sampled_from("pq"),
        host=st.just("h"),
        decision=st.none() | st.sampled_from("ab"),
        evidence=st.lists(
            st.builds(
                Evidence,
                alternative=st.sampled_from("ab"),
                version=st.sampled_from("12"),
                samples=st.lists(st.sampled_from([1.0, 2.0]), max_size=2).map(tuple),
                disqualified=st.none() | st.just("raised"),
            ),
            max_size=2,
            unique_by=lambda item: item.alternative,
        ).map(tuple),
        updated=st.sampled_from([1.0, 2.0]),
    ),
    max_size=2,
    unique_by=lambda record: record.key,
)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(_RECORDS, _RECORDS)
def test_the_sides_are_equal_and_merging_again_changes_nothing(
    ours: list[Record], theirs: list[Record]
) -> None:
    found = merge(ours, theirs)
    assert found == merge(theirs, ours)
    assert merge(found, found) == found
    assert merge(found, []) == found
    for one in found:
        assert all(
            item.disqualified is None for item in one.evidence if item.alternative == one.decision
        )
