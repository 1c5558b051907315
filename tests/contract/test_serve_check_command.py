"""`bestof serve-check` prints a line for each engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bestof.cli import main

MODEL = """
import torch
from torch import nn

class Net(nn.Module):  # no other process can import it
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(8, 4)

    def forward(self, rows):
        return self.dense(rows).relu()

def model():
    return Net().eval()

example = torch.randn(3, 8)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("net.py")
    path.write_text(MODEL, encoding="utf-8")
    return path


def test_a_line_for_each_engine(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-check", "net.py", "--engines", "plan,eager"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("float32 (3, 8), ")
    assert {line.split()[0] for line in lines[1:]} == {"plan", "eager"}
    assert all("error" in line for line in lines[1:])


@pytest.mark.long
def test_an_exported_model(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(8, 4).eval()
    torch.export.save(torch.export.export(model, (torch.randn(3, 8),)), "net.pt2")
    threads = torch.get_num_threads()
    try:
        words = ["serve-check", "net.pt2", "--engines", "eager", "--threads", "1", "--json"]
        assert main(words) == 0
    finally:
        torch.set_num_threads(threads)
    told = json.loads(capsys.readouterr().out)
    assert (told["engine"], told["threads"]) == ("eager", 1)
    assert told["results"][0]["samples"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "there is no file"),
        ("example = 1", "it must define `model` and `example`; model is not"),
        ("model = 1 / 0", "it raised ZeroDivisionError"),
        ("model, example = 1, 2", "model: expected a torch.nn.Module"),
    ],
)
def test_a_file_without_a_model(
    file: Path, content: str | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.unlink()
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert main(["serve-check", "net.py"]) == 2
    assert told in capsys.readouterr().err


def test_a_file_of_another_kind(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.pt2").write_text("text", encoding="utf-8")
    assert main(["serve-check", "net.pt2"]) == 2
    assert "it is neither" in capsys.readouterr().err
