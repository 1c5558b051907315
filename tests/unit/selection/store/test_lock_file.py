"""The lock file: stable text, exact round trips, and clear errors."""

from __future__ import annotations

import json
import math
import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestof.errors import StoreError
from bestof.selection.store.lock_file import export_records, import_pins, import_records
from bestof.selection.store.record import Child, Evidence, Pin, Record

RECORDS = [
    Record(
        "conv2d",
        "(1, 3, 'é')",
        "a host",
        "im2row",
        (
            Evidence("im2row", "2.1", (0.00123456789, 0.0012), None, (Child("matmul", "(3, 3)"),)),
            Evidence("fft", "", (), "RuntimeError: no plan"),
        ),
        1_795_249_000.1239,
    ),
    Record("blur", "None", "a host", None, (), 0.0),
]
PINS = [Pin("conv2d", "fft", "(1,)", "a host"), Pin("conv2d", "direct")]

TEXT = """{
"format": 1,
"pins": [
{"selector": "conv2d", "alternative": "direct"},
{"selector": "conv2d", "problem": "(1,)", "host": "a host", "alternative": "fft"}
],
"records": [
{"selector": "blur", "problem": "None", "host": "a host", "decision": null, "updated": 0.000, \
"evidence": []},
{"selector": "conv2d", "problem": "(1, 3, '\\u00e9')", "host": "a host", "decision": "im2row", \
"updated": 1795249000.124, "evidence": [
 {"alternative": "fft", "version": "", "disqualified": "RuntimeError: no plan", "microseconds": []},
 {"alternative": "im2row", "version": "2.1", "children": [["matmul", "(3, 3)"]], \
"microseconds": [1234.57, 1200]}
]}
]
}
"""


def test_the_text_is_as_reviewed() -> None:
    assert export_records(RECORDS, PINS) == TEXT


def test_nothing_at_all() -> None:
    text = export_records([])
    assert text == '{\n"format": 1,\n"pins": [],\n"records": []\n}\n'
    assert import_records(text) == []
    assert import_pins(text) == []


def test_an_import_returns_the_rounded_export() -> None:
    blur, conv2d = import_records(TEXT)
    assert blur == RECORDS[1]
    assert (conv2d.key, conv2d.decision, conv2d.updated) == (
        RECORDS[0].key,
        "im2row",
        1_795_249_000.124,
    )
    fft, im2row = conv2d.evidence
    assert fft == RECORDS[0].evidence[1]
    assert im2row == Evidence(
        "im2row", "2.1", (1234.57 / 1e6, 0.0012), None, (Child("matmul", "(3, 3)"),)
    )
    assert import_pins(TEXT) == [PINS[1], PINS[0]]


_TEXTS = st.text(max_size=5)
_RECORDS = st.builds(
    Record,
    selector=_TEXTS,
    problem=_TEXTS,
    host=_TEXTS,
    decision=st.none() | _TEXTS,
    evidence=st.lists(
        st.builds(
            Evidence,
            alternative=_TEXTS,
            version=_TEXTS,
            samples=st.lists(st.floats(min_value=0, max_value=1e200), max_size=4).map(tuple),
            disqualified=st.none() | _TEXTS,
            children=st.lists(st.builds(Child, _TEXTS, _TEXTS), max_size=2).map(tuple),
        ),
        max_size=3,
        unique_by=lambda item: item.alternative,
    ).map(tuple),
    updated=st.floats(min_value=-1e15, max_value=1.7e9),
)
_PINS = st.builds(Pin, _TEXTS, _TEXTS, st.none() | _TEXTS, st.none() | _TEXTS)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    st.lists(_RECORDS, max_size=4, unique_by=lambda record: record.key),
    st.lists(_PINS, max_size=4, unique_by=lambda pin: (pin.selector, pin.problem, pin.host)),
)
def test_a_round_trip_keeps_everything_but_the_last_digits(
    records: list[Record], pins: list[Pin]
) -> None:
    text = export_records(records, pins)
    shuffled = list(records)
    random.Random(1).shuffle(shuffled)
    assert export_records(shuffled, reversed(pins)) == text
    back = import_records(text)
    assert export_records(back, import_pins(text)) == text
    for old, new in zip(sorted(records, key=lambda record: record.key), back, strict=True):
        carried = {
            one.alternative for one in old.evidence if one.samples and one.disqualified is None
        }
        decision = old.decision if old.decision in carried else None
        assert (new.key, new.decision) == (old.key, decision)
        assert new.updated == pytest.approx(old.updated, abs=0.00051, rel=0)
        for mine, yours in zip(
            sorted(old.evidence, key=lambda item: item.alternative), new.evidence, strict=True
        ):
            assert (mine.alternative, mine.version, mine.disqualified, mine.children) == (
                yours.alternative,
                yours.version,
                yours.disqualified,
                yours.children,
            )
            assert yours.samples == pytest.approx(mine.samples, rel=6e-6, abs=1e-300)
    assert set(import_pins(text)) == set(pins)


def test_a_number_that_json_cannot_hold_is_refused() -> None:
    evidence = (Evidence("a", "1", (math.inf,)),)
    with pytest.raises(StoreError, match=r"'s' for p holds the number inf"):
        export_records([Record("s", "p", "h", None, evidence, 1.0)])


def test_every_export_can_be_imported() -> None:
    evidence = (Evidence("a", "\udcff", (1.0,)), Evidence("b", "1", (), "no file \udcff"))
    undecided = Record("s", "p", "h", "b", evidence, 1.0)
    (back,) = import_records(
        export_records(
            [
                undecided,
            ]
        )
    )
    assert back.decision is None, "no samples carry it"
    assert [item.version for item in back.evidence] == ["\\udcff", "1"]


def refusal(text: str) -> str | None:
    try:
        import_records(text)
        import_pins(text)
    except StoreError as error:
        return str(error)
    return None


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.integers(0, len(TEXT) - 1), st.sampled_from([*'"{}[],:\\\n 0-.eN<', "\ufeff", "\udcff"]))
def test_a_changed_character_never_raises_anything_but_a_store_error(
    place: int, character: str
) -> None:
    for text in (TEXT[:place] + character + TEXT[place + 1 :], TEXT[:place] + TEXT[place + 1 :]):
        told = refusal(text)
        assert told is None or re.match(r"lock file, line [1-9][0-9]*: .", told)


WRONG = [
    ("not JSON", r"line 1: not JSON: Expecting value, column 1"),
    ("[]", r"the file: expected an object, got \[\]"),
    ("{}", r"format: expected 1, got None"),
    ('{"format": true}', r"format: expected 1, got True"),
    ('{"format": 2, "pins": [], "records": []}', r"format: expected 1, got 2"),
    ('{"format": 1, "pins": []}', r"records: expected a list, got None"),
    (
        '{"format": 1, "pins": [], "records": [], "recods": []}',
        r"the file: unknown field 'recods'",
    ),
    ('{"format": 1, "pins": [], "records": [NaN]}', r"line 1: NaN is not a number in JSON"),
    ('{"format": 1, "pins": [], "records": [3]}', r"records\[0\]: expected an object, got 3"),
]
CHANGED = [
    (
        '"updated": 0.000',
        '"updated": 1e11',
        r"line 8: records\[0\]\.updated: expected seconds .* not in the future, got 1",
    ),
    (
        '"decision": "im2row"',
        '"decision": "fft"',
        r"line 9: records\[1\]\.decision: expected an alternative with samples .* got 'fft'",
    ),
    (
        '"decision": "im2row"',
        '"decision": "direct"',
        r"line 9: records\[1\]\.decision: expected an alternative with samples .* got 'direct'",
    ),
    (
        '"version": "2.1"',
        '"version": "\\udcff"',
        r"line 11: records\[1\]\.evidence\[1\]\.version: .* lone surrogates .*, got '.udcff'",
    ),
    (
        '"version": "2.1"',
        '"version": "2.1", "version": "2.1"',
        r"line 11: the field 'version' appears twice in one object",
    ),
    ("1234.57", "Infinity", r"line 11: Infinity is not a number in JSON"),
    ('"pins": [', '"pins"] , "x" NaN, [', r"line 3: not JSON"),
    ('{\n"format": 1', '{\n"format": NaN, }]} {1: "\\x"', r"line 2: NaN is not a number|not JSON"),
    ('"version": "2.1"', '"version": "2.1", "version": NaN}]}]}]', r"line 11: "),
    ("1234.57", "9" * 5000, r"line 1: a number cannot be read"),
    ("1234.57", "[" * 100_000, r"line 1: .* nested too deeply"),
    (
        "1234.57",
        "[" * 200 + "]" * 200,
        r"line 11: records\[1\].*microseconds\[0\]: expected a number",
    ),
    ('{\n"format"', '\ufeff{\n"format"', r"line 1: the file begins with a byte order mark"),
    ('"pins"', '<<<<<<< HEAD\n"pins"', r"line 3: <<<<<<< is the conflict marker of a merge"),
    ('"pins": [', '"pins": [,', r"line 3: not JSON: Expecting value, column 10"),
    (
        '"selector": "conv2d", "problem": "(1, 3',
        '"selector": 7, "problem": "(1, 3',
        r"records\[1\]\.selector: .* got 7",
    ),
    ('"decision": "im2row"', '"decision": 1', r"records\[1\]\.decision: expected a string, got 1"),
    (
        '"updated": 0.000',
        '"updated": "now"',
        r"records\[0\]\.updated: expected a number, got 'now'",
    ),
    (
        '"updated": 0.000',
        '"updated": 1e999',
        r"records\[0\]\.updated: expected a number that fits a float, got inf",
    ),
    (
        '"updated": 0.000',
        f'"updated": 1{"0" * 400}',
        r"records\[0\]\.updated: expected a number that fits a float",
    ),
    ('"updated": 0.000', '"upd": 0', r"records\[0\]: unknown field 'upd'"),
    (
        "1234.57",
        "-1",
        r"records\[1\]\.evidence\[1\]\.microseconds\[0\]: expected a number from 0 on, got -1",
    ),
    (
        "1234.57",
        "true",
        r"records\[1\]\.evidence\[1\]\.microseconds\[0\]: expected a number from 0 on, got True",
    ),
    (
        '"version": "2.1"',
        '"version": null',
        r"records\[1\]\.evidence\[1\]\.version: expected a string, got None",
    ),
    ('["matmul", "(3, 3)"]', '["matmul"]', r"evidence\[1\]\.children\[0\]: expected a pair"),
    (
        '"alternative": "im2row"',
        '"alternative": "fft"',
        r"records\[1\]\.evidence\[1\]: 'fft' appears twice",
    ),
    (
        '"selector": "conv2d", "problem": "(1, 3, \'\\u00e9\')"',
        '"selector": "blur", "problem": "None"',
        r"records\[1\]: .* appears twice",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_the_error_for_a_wrong_file_names_place_and_expectation(text: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        import_records(text)


@pytest.mark.parametrize(("old", "new", "message"), CHANGED)
def test_the_error_for_a_wrong_field_names_place_and_expectation(
    old: str, new: str, message: str
) -> None:
    changed = TEXT.replace(old, new)
    assert changed != TEXT
    with pytest.raises(StoreError, match=message):
        import_records(changed)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ([{"selector": "s"}], r"pins\[0\]\.alternative: expected a string, got None"),
        (
            [{"selector": "s", "alternative": "a", "stage": 1}],
            r"pins\[0\]: unknown field 'stage'",
        ),
        ([{"selector": "s", "alternative": "a"}] * 2, r"pins\[1\]: .* appears twice"),
        ({}, r"pins: expected a list"),
    ],
)
def test_the_error_for_a_wrong_pin_names_place_and_expectation(pins: object, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        import_pins(json.dumps({"format": 1, "pins": pins, "records": []}))


def test_a_clock_that_was_ahead_makes_a_file_that_can_be_imported() -> None:
    before = time.time()
    for ahead in (before + 1e6, 1e12, 1e308):
        record = Record("s", "p", "h", None, (Evidence("a", "1", (1.0,)),), ahead)
        (found,) = import_records(export_records([record]))
        assert before - 1 <= found.updated <= time.time() + 1
        assert found.evidence == record.evidence
