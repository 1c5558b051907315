"""Entries of the ranks' log, and the text of a place."""

from __future__ import annotations

import pytest

from bestof.torch.process.ranks.entry import DECIDE, REOPEN, TRY, Entry, parse_place, place_text


def test_entries_are_parsed_or_refused() -> None:
    entries = [
        ("toy/0/5", Entry(TRY, 5, 7, 9, ("a", "b"), "a")),
        ("toy/0/6", Entry(DECIDE, 5, 7, 9, (), "a")),
        ("toy/0/7", Entry(REOPEN, 5, 5, 9)),
    ]
    text = place_text(entries)
    assert parse_place(text) == parse_place(text.encode()) == entries
    for wrong in ("", "[1, 2]", "[[]]", '["k", 1]', '[["k", "try", 1]]', '[["k","x",1,1,1,[],""]]'):
        with pytest.raises(ValueError, match="expected a"):
            parse_place(wrong)
