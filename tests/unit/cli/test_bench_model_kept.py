"""`bestof bench model --keep`: what is kept, what is measured again, and files of somebody else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bestof.bench.model.job import Job
from bestof.bench.model.peers.table import ModelPeer
from bestof.bench.model.result import ModelTimes, PeerTime
from bestof.cli import bench_model, main

# The peers that the fake measurement answers.
FAKE = ["--only", "eager,ncnn,enable"]


def test_kept_results_are_not_measured_again(asked: list[Any], tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "kept.jsonl"
    assert main(["bench", "model", "vgg16", *FAKE, "--batch", "1", "--keep", str(file)]) == 0
    assert main(["bench", "model", "vgg16", *FAKE, "--batch", "1,8", "--keep", str(file)]) == 0
    assert [job.batch for job, *_ in asked] == [1, 8]
    assert capsys.readouterr().out.count("vgg16 inference, batch 1") == 2
    file.write_text("{}\n")
    assert main(["bench", "model", "vgg16", "--keep", str(file)]) == 2
    assert f"{file}, line 1: no measurement of this version" in capsys.readouterr().err


def test_peers_that_the_kept_result_lacks_are_measured_with_all_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """Ratios are of times in turn, so one peer alone cannot be added."""
    asked: list[Any] = []

    def measure(job: Job, peers: Sequence[ModelPeer], *_: Any, **__: Any) -> ModelTimes:
        asked.append(peers)
        return ModelTimes(
            job, None, tuple(PeerTime(one.name, one.label, one.ours) for one in peers)
        )

    monkeypatch.setattr(bench_model, "measure_model", measure)
    keeping = ["bench", "model", "vgg16", "--threads", "1", "--keep", str(tmp_path / "kept.jsonl")]
    for peers, times in (
        ("eager", 1),
        ("eager,onnxruntime", 2),
        ("onnxruntime", 2),
        ("eager,openvino", 3),
        ("onnxruntime", 3),
    ):
        capsys.readouterr()
        assert main([*keeping, "--only", peers, "--json"]) == 0
        assert len(asked) == times
        shown = json.loads(capsys.readouterr().out)[0]["peers"]
        assert {peer["name"] for peer in shown}.issuperset(peers.split(","))


def test_a_kept_file_is_read_whatever_its_effort(
    asked: list[Any], tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "kept.jsonl"
    keeping = ["bench", "model", "--threads", "1", "--keep", str(file)]
    assert main([*keeping, "vgg16", "--rounds", "3"]) == 0
    assert main([*keeping, "unet", "--rounds", "2"]) == 0
    with file.open("a") as stream:
        stream.write('{"job": {')  # cut off
    capsys.readouterr()
    assert main(["bench", "model", "--read", str(file), "--json"]) == 0
    assert [one["job"]["model"] for one in json.loads(capsys.readouterr().out)] == ["vgg16", "unet"]
    file.write_text('{"job": {}}\n')
    assert main(["bench", "model", "--read", str(file)]) == 2
    assert f"--read: {file}, line 1: no measurement" in capsys.readouterr().err


def test_the_matrix_goes_on_where_it_was_cut_off(
    matrix_asked: list[tuple[str, str]], tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "matrix.jsonl"
    arguments = ["bench", "model", "resnet18", "resnet34", "--matrix", "--train", "--threads", "1"]
    keeping = [*arguments, "--keep", str(file)]
    assert main(keeping) == 1  # what failed is not kept: it is measured again
    assert len(file.read_text().splitlines()) == 1
    capsys.readouterr()
    assert main([*keeping, "--json"]) == 0
    assert [row["ratio"] for row in json.loads(capsys.readouterr().out)] == [2.0, 2.0]
    assert matrix_asked == [("resnet18", "enable"), ("resnet34", "enable"), ("resnet34", "enable")]
    assert (
        main([*keeping[:2], "vgg16", *keeping[3:]]) == 0
    )  # rows of other models, and batches, are none of its own
    assert matrix_asked[3:] == [("vgg16", "enable")]
    assert main(["bench", "model", "resnet18", "--keep", str(file)]) == 2
    assert (
        f"{file}, line 1: no measurement of this version, or of another table"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("matrix", [False, True])
def test_results_of_another_effort_or_other_kernels_are_measured_again(
    matrix: bool,
    asked: list[Any],
    matrix_asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    keeping = ["bench", "model", "vgg16", "--threads", "1", "--keep", str(tmp_path / "kept.jsonl")]
    keeping, measured = (
        ([*keeping, "--matrix", "--train"], matrix_asked) if matrix else ([*keeping, *FAKE], asked)
    )
    for more, times in (
        ([], 1),
        ([], 1),
        (["--rounds", "3"], 2),
        (["--seconds", "0.1"], 3),
        (["--rounds", "3"], 3),
        ([], 3),
    ):
        assert main([*keeping, *more]) == 0
        assert len(measured) == times
    monkeypatch.setattr("bestof.bench.kept.build", lambda: "another")
    assert main(keeping) == 0
    assert len(measured) == 4
    monkeypatch.setenv("BESTOF_HOST", "another")
    assert main(keeping) == 0
    assert len(measured) == 5


@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize("left", [1, 40, -1])
def test_a_last_line_that_was_cut_off_is_measured_again(
    left: int, matrix: bool, asked: list[Any], matrix_asked: list[Any], tmp_path: Path
) -> None:
    """As where the process, or the disk, ended while it was written."""
    file = tmp_path / "kept.jsonl"
    keeping = ["bench", "model", "vgg16", "--threads", "1", "--batch", "1,2", "--keep", str(file)]
    keeping, measured = (
        ([*keeping, "--matrix", "--train"], matrix_asked) if matrix else ([*keeping, *FAKE], asked)
    )
    assert main(keeping) == 0
    whole = file.read_bytes()
    first, second = whole.splitlines(keepends=True)
    file.write_bytes(first + second[:left])
    assert main(keeping) == 0
    assert len(measured) == 3
    assert file.read_bytes() == whole


def test_a_file_of_somebody_else_is_left_as_it_is(
    asked: list[Any], tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "other.json"
    file.write_text("[1, 2]")
    assert main(["bench", "model", "vgg16", "--keep", str(file)]) == 2
    assert "line 1: no measurement of this version" in capsys.readouterr().err
    assert file.read_text() == "[1, 2]"
    assert asked == []
