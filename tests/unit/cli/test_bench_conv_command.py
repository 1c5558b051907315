"""`bestof bench conv`, what it prints."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext

import pytest

from bestof.cli import bench_conv
from bestof.errors import InvalidArgument

SMALL = "i3x8x8,k4x3x3,b2,s2"


@pytest.mark.parametrize("rich", [True, False])
def test_tables(
    rich: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not rich:
        monkeypatch.setattr("bestof.view.bench.table.find_spec", lambda name: None)
    assert bench_conv.call([SMALL, "i2x5x5,k2x1x1", "--repeats", "2", "--threads", "1"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    titles = [line.split(":")[0] for line in lines if " of i" in line]
    assert titles == [
        f"{name} of {problem}"
        for problem in ("i3x8x8,k4x3x3,b2,s2,p0,d1,g1", "i2x5x5,k2x1x1,b1,s1,p0,d1,g1")
        for name in ("forward", "input gradient", "weight gradient")
    ]
    assert sum(line.startswith("*") for line in lines) == 6
    assert sum(line.removeprefix("*").split()[:2] == ["as", "is"] for line in lines) == 6
    assert all(
        "1.00x" in line for line in lines if line.removeprefix("*").split()[:2] == ["as", "is"]
    )
    counts = [line for line in lines if line.startswith("not applicable: ")]
    assert len(counts) == 6
    assert all(re.search(r": \d+ others, named by --json$", line) for line in counts)
    assert not any("fft" in line for line in counts)
    last = lines.index("what to choose, and how many times faster it is than PyTorch's own kernel")
    assert [line.split(" ")[0] for line in lines[last + 2 :]] == [
        "i3x8x8,k4x3x3,b2,s2,p0,d1,g1",
        "i2x5x5,k2x1x1,b1,s1,p0,d1,g1",
    ]
    chosen = [found[1] for line in lines if (found := re.match(r"\* +(.+?) +\d+\.\d", line))]
    for line, three in zip(lines[last + 2 :], (chosen[:3], chosen[3:]), strict=True):
        told = [words.rpartition(", ")[0] for words in re.split(r"\s{2,}", line)[1:]]
        assert told == three


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        bench_conv.call([SMALL, "--repeats", "1", "--passes", "weight-gradient,forward", "--json"])
        == 0
    )
    passes = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in passes] == ["forward", "weight gradient"]
    rows = {row["name"]: row for row in passes[0]["alternatives"]}
    assert rows["as is"]["ratio"] == 1.0
    assert rows["fft"]["seconds"] is None
    assert sum(row["chosen"] for row in rows.values()) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([SMALL, "i3x8"], "'i3x8' has 2 numbers"),
        (["nonsense"], "cannot read 'nonsense'"),
        ([SMALL, "--passes", "backward"], "there is no pass 'backward'"),
        ([SMALL, "--repeats", "0"], "repeats"),
    ],
)
def test_wrong_usage_is_reported_before_anything_is_printed(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        InvalidArgument, match=told
    ):  # which the command line turns into one line and exit status 2
        bench_conv.call(arguments)
    assert capsys.readouterr().out == ""


def test_no_convolution_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench_conv.call([])
    assert ended.value.code == 2


def test_the_progress_names_each_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(
        "bestof.cli.bench_conv.progress_bar",
        lambda: nullcontext(lambda *step: told.append(step)),
    )
    words = [SMALL, "--repeats", "1", "--passes", "forward,input-gradient", "--json"]
    assert bench_conv.call(words) == 0
    assert told == [(f"{SMALL}: forward", 0, 2), (f"{SMALL}: input gradient", 1, 2)]
    assert len(json.loads(capsys.readouterr().out)) == 2
