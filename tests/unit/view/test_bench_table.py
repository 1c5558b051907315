"""Tables of benchmarks: on a narrow terminal, words are folded and numbers are whole."""

from __future__ import annotations

import pytest

from bestof.bench.convolution.pass_times import AlternativeTime, PassTimes
from bestof.view.bench.alternatives import alternatives_table
from bestof.view.bench.table import Table, print_tables

TABLE = Table(
    "",
    ("array", "turn", "algorithm", "ms", "GB/s", "of copy", "spread", "of NumPy"),
    [("1x64x224x224", "to NHWC", "read-contiguous", "130.132", "0.2", "0.06", "± 0.00", "12.13")],
    left=3,
)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_numbers_are_whole(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", str(width))
    print_tables([TABLE])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for number in ("130.132", "0.2", "0.06", "0.00", "12.13"):
        assert number in words
    if width >= 80:
        assert "read-contiguous" in words


def test_alternatives_that_do_not_apply_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (
        AlternativeTime("as is", True, 0.002, 0.0, 1.0),
        AlternativeTime("fft", False),
        AlternativeTime("wrong", False, reason="ValueError"),
        AlternativeTime("depthwise", False),
    )
    print_tables([alternatives_table(PassTimes("forward", "i1", 2, 10**9, rows))])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[-2:] == ["wrong failed: ValueError", "not applicable: 2 others, named by --json"]


def test_a_sentence_does_not_fold_the_words_of_other_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "60")
    name, why = "Winograd F(4) for all layers", "wrong by 2.2e-03 of the results (2e-03 allowed)"
    rows = [("", name, why, ""), ("*", "PyTorch eager, channels first", "254.97", "1.00x")]
    print_tables([Table("", ("", "peer", "ms", "ratio"), rows)])
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[1].split()) == "* PyTorch eager, channels first 254.97 1.00x"
    assert " ".join(" ".join(lines[2:]).split()) == f"{name} {why}"
