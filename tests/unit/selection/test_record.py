"""Records: how a save changes the record before it."""

from __future__ import annotations

from bestof.selection.store.record import Evidence, Record

OLD = Record("s", "p", "h", "a", (Evidence("a", "1", (1.0,)), Evidence("b", "1", (2.0,))), 1.0)


def newer(decision: str | None, *evidence: Evidence) -> Record:
    return Record("s", "p", "h", decision, evidence, 2.0)


def test_seconds_is_the_median_of_the_samples_without_a_slow_first_one() -> None:
    assert Evidence("a", "1", (1.2, 1.0, 2.0)).seconds == 1.2
    assert Evidence("a", "1", (5.0, 1.0, 2.0)).seconds == 1.5
    assert Evidence("a", "1").seconds is None


def test_the_key_is_selector_problem_and_host() -> None:
    assert OLD.key == ("s", "p", "h")


def test_absorb_replaces_evidence_in_its_place_and_keeps_the_rest() -> None:
    b, c = Evidence("b", "2", (9.0,)), Evidence("c", "1")
    assert OLD.absorb(newer("b", c, b)) == newer("b", OLD.evidence[0], b, c)


def test_absorb_keeps_the_decision_where_the_newer_has_none() -> None:
    assert OLD.absorb(newer(None)) == newer("a", *OLD.evidence)


def test_absorb_withdraws_a_decision_for_a_disqualified_alternative() -> None:
    refused = Evidence("a", "1", (), "")
    assert OLD.absorb(newer(None, refused)).decision is None
    assert OLD.absorb(newer("a", refused)).decision is None
    assert OLD.absorb(newer("b", refused)).decision == "b"


def test_absorb_believes_a_decision_over_an_older_disqualification() -> None:
    refused = newer(None, Evidence("a", "1", (), "raised"))
    assert refused.absorb(newer("a")).decision == "a"


def test_absorb_keeps_evidence_of_alternatives_left_out_later() -> None:
    assert OLD.absorb(newer("a", Evidence("b", "1"))) == newer("a", *OLD.evidence)
    assert OLD.absorb(newer("a", Evidence("b", "2"))) == newer(
        "a", OLD.evidence[0], Evidence("b", "2")
    )
