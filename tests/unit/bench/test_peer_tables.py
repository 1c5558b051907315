"""The tables of peers: a module is a row, and what a row says is all that tables and pictures
need.
"""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from bestof.bench.convolution.peers import table as convolution
from bestof.bench.convolution.result import Row
from bestof.bench.model.peers import table as model
from bestof.bench.peer import Peer
from bestof.bench.quartiles import Quartiles
from bestof.view.bench import convolution_peers
from bestof.view.bench.table import print_tables

CONVOLUTION = (convolution.MACHINE, convolution.NATIVE, *convolution.PEERS)
NEW = convolution.ConvolutionPeer("new", "new", "New library", "#123456")
ROW = Row(
    *("layer", "forward", 1, 1, "native", "direct", True, 1.0, 0.1, 5.0, 0.5),
    ratios={"new": Quartiles(1.5, 2.5, 3.5)},
    reach=None,
    scaling=None,
)


@pytest.mark.parametrize(
    ("module", "rows"), [(model, model.PEERS), (convolution, CONVOLUTION)], ids=["model", "conv"]
)
def test_every_module_of_a_peer_is_in_the_table(module: object, rows: tuple[Peer, ...]) -> None:
    folder = Path(str(module.__file__)).parent  # type: ignore[attr-defined]
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "table", "prepared"}
    assert files == {row.module.rpartition(".")[2] for row in rows}


@pytest.mark.parametrize("rows", [model.PEERS, CONVOLUTION], ids=["model", "conv"])
def test_rows_are_distinguished(rows: tuple[Peer, ...]) -> None:
    for field in ("name", "label", "colour"):
        assert len({getattr(row, field) for row in rows}) == len(rows), field


def test_a_new_row_has_its_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(convolution_peers, "PEERS", (*convolution.PEERS, NEW))
    print_tables(convolution_peers.peer_tables([ROW, replace(ROW, best=False)]))
    shown = capsys.readouterr().out
    assert "New library" in shown
    assert "2.50 (1.50 to 3.50)" in shown
    stream = io.StringIO()
    convolution_peers.write_rows([ROW], stream)
    (written,) = csv.DictReader(io.StringIO(stream.getvalue()))
    assert (written["new"], written["new_low"], written["new_high"]) == ("2.5", "1.5", "3.5")
    assert (written["onednn"], written["scaling"]) == ("", "")
