"""`bestof bench conv --peers`, what it prints."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from bestof.bench.convolution import measure as measuring
from bestof.bench.convolution.peers.table import ConvolutionPeer, peer_named
from bestof.cli import bench_conv
from bestof.errors import BenchError, InvalidArgument
from bestof.selection.identity.host import machine
from bestof.torch.ops.onednn import has_bfloat16

ABSENT = ConvolutionPeer("absent_peer", "absent_peer", "absent", "#000000", ("absent_peer",))
SMALL = [
    "--peers",
    "i4x6x6,k8x3x3,p1",
    "--batch",
    "1",
    "--threads",
    "1",
    "--rounds",
    "2",
    "--seconds",
    "0.001",
]


@pytest.fixture(autouse=True)
def only_ourselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "PEERS", (ABSENT,))


def test_a_table_and_a_second_run_that_measures_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = str(tmp_path / "kept.jsonl")
    assert bench_conv.call([*SMALL, "--keep", kept]) == 0
    first = capsys.readouterr()
    titles = [line for line in first.out.splitlines() if line.endswith("1 thread")]
    assert titles == [
        f"{name}, batch 1, 1 thread" for name in ("forward", "input gradient", "weight gradient")
    ]
    assert sum(line.startswith("*") for line in first.out.splitlines()) == 3
    assert "without absent_peer" in first.err
    monkeypatch.setattr("bestof.cli.bench_conv_peers.measure", None)
    assert bench_conv.call([*SMALL, "--keep", kept]) == 0
    assert capsys.readouterr().out == first.out


def test_json_and_csv_tell_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = [*SMALL, "--passes", "forward", "--keep", str(tmp_path / "kept.jsonl")]
    assert bench_conv.call([*arguments, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert bench_conv.call([*arguments, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["algorithm"] for row in rows} == {time["algorithm"] for time in result["times"]}
    times = {time["algorithm"]: time["seconds"]["middle"] * 1e3 for time in result["times"]}
    for row in rows:
        assert float(row["milliseconds"]) == pytest.approx(times[row["algorithm"]])
        assert row["onednn"] == row["onednn_low"] == ""


@pytest.mark.long
def test_bfloat16_has_rows_and_a_column_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_bfloat16():
        pytest.skip("there are no instructions that pay for bfloat16 here")
    monkeypatch.setattr(measuring, "PEERS", (peer_named("onednn_bf16"),))
    assert bench_conv.call([*SMALL, "--bfloat16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "oneDNN bf16" in lines[1]
    assert any("convgemm_bf16, bfloat16" in line for line in lines)
    assert any(" onednn_bf16 " in line for line in lines)
    assert bench_conv.call([*SMALL, "--passes", "forward"]) == 0
    assert "bf16" not in capsys.readouterr().out


def test_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "roofline.svg"
    # A FLOP for every four bytes: the copy limits it on any machine, and is drawn where it limits.
    small = ["i1x8x8,k1x1x1" if argument.startswith("i4") else argument for argument in SMALL]
    assert bench_conv.call([*small, "--passes", "forward", "--roofline", str(path)]) == 0
    drawn = path.read_text(encoding="utf-8")
    for text in ("multiply-add", "copy", "1x1 1-", "bestof, the fastest algorithm"):
        assert f"<!-- {text}" in drawn
    assert re.search(rf"<!-- {re.escape(machine())}, peak \d+ GFLOP/s", drawn)


def test_a_picture_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bestof.cli.bench_conv_peers.find_spec", lambda name: None)
    with pytest.raises(BenchError, match="matplotlib is missing"):
        bench_conv.call([*SMALL, "--roofline", str(tmp_path / "roofline.png")])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--layers", "vgg17"], "there is no group 'vgg17'"),
        (["--layers", "vgg16", "--quick"], "take one of"),
        (["--batch", "0"], "--batch"),
        (["--threads", "1,x"], "--threads"),
        (
            ["--bfloat16", "--passes", "input-gradient"],
            "--bfloat16: only the forward pass exists",
        ),
        (["--passes", "backward"], "there is no pass 'backward'"),
        (["--rounds", "0"], "--rounds"),
        (["--seconds", "nan"], "--seconds"),
        (["--seconds", "inf"], "--seconds"),
        (["i4x6x6"], "'k' is missing"),
        (["--keep", "missing/kept"], "cannot write measurements to 'missing/kept'"),
        (["--roofline", "missing/roofline.png"], "cannot write a roofline to"),
        (["--roofline", "roofline.xyz"], "there is no picture of this kind"),
        (["--roofline", "roofline.png", "--passes", "input-gradient"], "shows the forward pass"),
    ],
)
def test_wrong_usage_is_reported_before_anything_is_printed(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidArgument, match=told):
        bench_conv.call(["--peers", *arguments])
    assert capsys.readouterr().out == ""
