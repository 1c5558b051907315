"""The measurement of matrix products: fake sides with known times, and every peer's numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from bestof import kernels
from bestof.bench.convolution.peer_worker import Prepared
from bestof.bench.product import measure as measured
from bestof.bench.product.case import CASES, ORDERS, Case, Operands, parse_case
from bestof.bench.product.measure import measure
from bestof.bench.product.peers.table import MACHINE, NATIVE, PEERS
from bestof.cli import bench, bench_gemm
from bestof.errors import BenchError, InvalidArgument, WrongResult

SMALL = Case(10, 100, 1000)  # 2e6 FLOPs, 444,000 bytes
SECONDS = {
    "multiply-add": 1.0,
    "copy, memcpy": 1.0,
    "blocked": 2.0,
    "few_rows": 4.0,
    "mkl": 5.0,
    "onednn": 3.0,
    "numpy": 1.0,
}


class FakeSide:
    """A peer whose runs take the times of `SECONDS`."""

    samples: ClassVar[dict[str, float]] = {}
    absent: tuple[str, ...] = ()

    def __init__(self, peer: Any, threads: int, worker: str) -> None:
        self.name, self.version = peer.name, f"fake {peer.name}"
        assert worker == "bestof.bench.product.peer_worker"
        if peer.name in self.absent:
            raise BenchError(f"{peer.name}: not installed")

    def __enter__(self) -> FakeSide:
        return self

    def __exit__(self, *_: object) -> None: ...

    def prepare(self, case: Case) -> dict[str, Prepared]:
        runs = {
            "machine": {"multiply-add": 4e6, "copy, memcpy": 444000.0},
            "native": {"blocked": 2e6, "few_rows": 2e6},
            "mkl": {"mkl": None},
            "onednn": {"onednn": None},
            "openblas": {"numpy": None},
        }[self.name]
        return {
            name: Prepared(1.0, [self.samples.get(name, 1.0)] * 3, work, None)
            for name, work in runs.items()
        }

    def time(self, run: str, seconds: float) -> list[float]:
        return [SECONDS[run]] * 3


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "Side", FakeSide)


def run(*threads: int, cases: Sequence[Case] = (SMALL,)) -> list[measured.ProductTime]:
    return measure(
        cases, threads or [1], rounds=3, seconds=1, tell=lambda _: None, pause=lambda _: None
    )


def test_ratios_are_to_the_better_peer_of_pytorch() -> None:
    rows = {row.run: row for row in run()}
    assert list(rows) == ["blocked", "few_rows", "mkl", "onednn", "numpy"]
    assert {name: row.ratio.middle for name, row in rows.items() if row.ratio is not None} == {
        "blocked": 1.5,
        "few_rows": 0.75,
    }
    assert rows["blocked"].of_peak == 0.25  # 1e6 of 4e6 FLOP/s
    assert rows["blocked"].of_ceiling == 0.5  # the copy takes a second, the arithmetic half of one
    assert rows["mkl"].gflops == 0.4e-3
    assert [row.threads for row in run(1, 2)] == [1] * 5 + [2] * 5


def test_the_peak_is_the_largest_of_all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Case] = []

    def prepare(side: FakeSide, case: Case) -> dict[str, Prepared]:
        if side.name == "machine":
            prepared.append(case)
        return one_second(side, case)

    def time(side: FakeSide, run: str, seconds: float) -> list[float]:
        disturbed = side.name == "machine" and len(prepared) == 1
        return [SECONDS[run] * (4 if disturbed else 1)] * 3

    one_second = FakeSide.prepare
    monkeypatch.setattr(FakeSide, "prepare", prepare)
    monkeypatch.setattr(FakeSide, "time", time)
    rows = [row for row in run(cases=(SMALL, Case(10, 100, 1000, "NT"))) if row.run == "blocked"]
    assert [row.case for row in rows] == ["10x100x1000,NN", "10x100x1000,NT"]
    assert [row.of_peak for row in rows] == [0.25, 0.25]
    assert [row.of_ceiling for row in rows] == [0.5, 0.5]


def test_a_peer_that_is_not_there_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSide, "absent", ("onednn",))
    rows = {row.run: row for row in run()}
    assert "onednn" not in rows
    assert rows["blocked"].ratio is not None
    assert rows["blocked"].ratio.middle == 2.5
    monkeypatch.setattr(FakeSide, "absent", ("native",))
    with pytest.raises(BenchError, match="native: not installed"):
        run()


@pytest.mark.parametrize("wrong", [1.001, float("nan")])
def test_a_wrong_result_ends_the_measurement(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSide, "samples", {"mkl": wrong})
    with pytest.raises(WrongResult, match="10x100x1000,NN: mkl mkl"):
        run()


@pytest.mark.parametrize("peer", [NATIVE, *PEERS], ids=lambda peer: peer.name)
@pytest.mark.parametrize("order", ORDERS)
def test_every_peer_multiplies(peer: Any, order: str) -> None:
    case = Case(5, 70, 40, order)
    operands = Operands.of(case)
    product = operands.a.astype(np.float64) @ operands.b
    flat = product.reshape(-1)
    with torch.set_grad_enabled(True):  # a peer may leave it off
        runs = peer.load().prepare(case)
        for one in runs.values():
            one.call()
            np.testing.assert_allclose(
                one.samples(), flat[:: max(1, flat.size // 256) | 1], rtol=0, atol=1e-5
            )
    assert runs
    assert peer.load().version()


def test_an_emulated_algorithm_is_no_run_of_its_own() -> None:
    for isa in kernels.isas():
        kernels.use_isa(isa)
        try:
            runs = NATIVE.load().prepare(SMALL)
        finally:
            kernels.use_isa(None)
        assert "blocked, packed" in runs
        assert ("blocked_bf16x3" in runs) == (isa == "amx_bf16")


def test_the_ceilings_are_runs_too() -> None:
    assert set(MACHINE.load().prepare(SMALL)) == {"multiply-add", "copy, memcpy", "copy, kernels"}


def test_products_as_text() -> None:
    assert parse_case("64x512x96,NT") == Case(64, 512, 96, "NT")
    assert all(parse_case(str(case)) == case for case in CASES)
    for text in ("64x512", "0x1x1", "1x1x1,TT", "1x1x1x1", "a"):
        with pytest.raises(InvalidArgument, match="expected rows x depth x columns"):
            parse_case(text)


def test_the_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["10x100x1000", "--threads", "1", "--rounds", "2", "--seconds", "0"]
    assert bench.call(["gemm", *arguments]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith(", peak of 1 thread: 0 GFLOP/s")
    starred = [line for line in printed if line.startswith("*")]
    assert len(starred) == 1
    assert "blocked" in starred[0]
    assert bench_gemm.call([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["host"]
    assert [row["run"] for row in found["times"]][:2] == ["blocked", "few_rows"]
    for wrong in (["--threads", "0"], ["--rounds", "0"], ["--quick", "1x1x1"], ["1x1"]):
        with pytest.raises(InvalidArgument):
            bench_gemm.call(wrong)
