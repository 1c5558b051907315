"""The native convolutions beside peers, with made-up times and fake sides."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import numpy
import pytest

from bestof.bench.convolution import measure as measuring
from bestof.bench.convolution.case import PASSES, Case, Operands, aligned
from bestof.bench.convolution.layers import LAYERS, parse_case
from bestof.bench.convolution.measure import Sides, measure
from bestof.bench.convolution.peer_worker import Prepared
from bestof.bench.convolution.peers import native
from bestof.bench.convolution.peers.table import NATIVE, PEERS, ConvolutionPeer
from bestof.bench.convolution.record import kept_in
from bestof.bench.convolution.result import LayerTimes, Time
from bestof.bench.convolution.rows import reaches, rows_of
from bestof.bench.convolution.side import Side
from bestof.bench.quartiles import Quartiles
from bestof.errors import BenchError, InvalidArgument, WrongResult
from bestof.view.bench.convolution_peers import draw_peers

SMALL = parse_case("i4x6x5,k8x3x3,b2,s2,p1")


def absent(name: str) -> ConvolutionPeer:
    """A peer that is not installed."""
    return ConvolutionPeer(name, name, name, "#000000", (name,))


class FakeSide:
    """A side that answers at once, with `seconds` for each run, and logs its calls."""

    def __init__(
        self, name: str, threads: int, runs: dict[str, float], log: list[str], sample: float = 1.0
    ) -> None:
        self.name, self.threads, self.runs, self.log, self.sample = name, threads, runs, log, sample
        self.version = name

    def prepare(self, case: Case) -> dict[str, Prepared]:
        work = None if self.name in {peer.name for peer in PEERS} else 1e9
        return {
            run: Prepared(seconds, [self.sample], work, None) for run, seconds in self.runs.items()
        }

    def time(self, run: str, seconds: float) -> list[float]:
        self.log.append(f"{self.name} {run}")
        return [self.runs[run]] * 3


def fake_sides(log: list[str], sample: float = 1.0, ncnn: dict[str, float] | None = None) -> Sides:
    machine = {"multiply-add": 0.5, "copy, memcpy": 0.25, "copy, kernels": 0.125}
    sides = (
        FakeSide("machine", 2, machine, log),
        FakeSide("native", 2, {"fast": 1.0, "slower": 1.5, "slow": 3.0}, log, sample),
        FakeSide("onednn", 2, {"onednn": 2.0}, log),
        FakeSide("ncnn", 2, {} if ncnn is None else ncnn, log),
    )
    return Sides(sides, {}, {})  # type: ignore[arg-type]


def made_up(
    notation: str, *, threads: int = 2, seconds: float = 1.0, ratio: float = 2.0, batch: int = 8
) -> LayerTimes:
    quartiles = Quartiles(seconds * 0.9, seconds, seconds * 1.1)
    times = (
        Time(
            "native",
            "fast",
            quartiles,
            5,
            4e9,
            0,
            {"onednn": Quartiles(ratio - 0.1, ratio, ratio + 0.1)},
        ),
        Time("onednn", "onednn", Quartiles(2.0, 2.0, 2.0), 5, None, None, {}),
    )
    case = parse_case(notation)
    return LayerTimes(
        str(case),
        case.notation,
        "forward",
        batch,
        threads,
        16e9,
        1e9,
        8e9,
        10e9,
        times,
        {"ncnn": "no module"},
    )


def test_a_notation_is_a_case() -> None:
    assert SMALL.x_shape == (2, 6, 5, 4)
    assert SMALL.w_shape == (8, 3, 3, 4)
    assert SMALL.y_shape == (2, 3, 3, 8)
    assert SMALL.flops == 2 * (2 * 3 * 3 * 8) * (3 * 3 * 4)
    assert SMALL.bytes == 4 * (2 * 6 * 5 * 4 + 8 * 9 * 4 + 2 * 3 * 3 * 8)
    assert str(SMALL) == "3x3 4->8 @6x5 /2"
    assert SMALL.of("input gradient", 5).notation == SMALL.notation
    assert parse_case(SMALL.notation) == replace(SMALL, batch=1)


@pytest.mark.parametrize("text", ["i4x6x5,k8x9x9", "i4x6x6,k8x3x3,g3", "nonsense"])
def test_a_wrong_notation_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="expected iCHANNELS"):
        parse_case(text)


def test_the_layers_can_be_parsed_and_have_a_reach_each() -> None:
    for group in LAYERS:
        assert len({parse_case(notation).notation for notation in group.notations}) == len(
            group.notations
        )
        for values in group.reach.values():
            assert len(values) == len(group.notations)


def test_operands_are_the_same_for_every_side_and_aligned() -> None:
    first, second = Operands.of(SMALL), Operands.of(SMALL)
    for name in ("x", "w", "bias", "grad"):
        one, other = getattr(first, name), getattr(second, name)
        assert numpy.array_equal(one, other)
        assert one.ctypes.data % 64 == 0
        assert numpy.ptp(one) > 0
    assert aligned((3, 5)).shape == (3, 5)


@pytest.mark.parametrize("direction", PASSES)
def test_every_native_algorithm_gives_the_same(direction: str) -> None:
    case = parse_case("i6x9x9,k5x3x3,p1").of(direction, 2)
    runs = native.prepare(case)
    assert {"convgemm", "winograd2", "winograd4"} <= set(runs)
    samples = []
    for run in runs.values():
        run.call()
        samples.append(run.samples())
    assert numpy.ptp(samples[0]) > 0
    for other in samples[1:]:
        numpy.testing.assert_allclose(other, samples[0], atol=2e-3)


def test_sides_take_turns_and_slow_ones_leave() -> None:
    log: list[str] = []
    pauses: list[float] = []
    (result,) = measure(SMALL, "small", fake_sides(log), rounds=3, seconds=0.1, pause=pauses.append)
    turn = [
        "machine multiply-add",
        "machine copy, memcpy",
        "machine copy, kernels",
        "native fast",
        "native slower",
    ]
    assert log == [*[*turn, "native slow", "onednn onednn"] * 2, *turn, "onednn onednn"]
    assert len(pauses) == len(log)
    assert {time.algorithm: time.rounds for time in result.times} == {
        "fast": 3,
        "slower": 3,
        "slow": 2,
        "onednn": 3,
    }
    assert result.best.algorithm == "fast"
    assert result.best.ratios == {"onednn": Quartiles(2.0, 2.0, 2.0)}
    assert (result.peak, result.bandwidth) == (2e9, 8e9)
    assert result.failed == {"ncnn": "has no such pass"}


def test_a_fast_wrong_result_does_not_win() -> None:
    with pytest.raises(WrongResult, match="native fast is"):
        measure(SMALL, "small", fake_sides([], sample=1.01), rounds=1, seconds=0.1)
    with pytest.raises(WrongResult, match="native fast is"):
        measure(SMALL, "small", fake_sides([], sample=float("nan")), rounds=1, seconds=0.1)


def test_a_peer_that_fails_on_a_layer_is_left_out() -> None:
    class Failing(FakeSide):
        def prepare(self, case: Case) -> dict[str, Prepared]:
            raise BenchError("ncnn: out of memory")

    sides = fake_sides([])
    broken = replace(sides, running=(*sides.running[:3], Failing("ncnn", 2, {}, [])))
    (result,) = measure(SMALL, "small", broken, rounds=1, seconds=0.1)
    assert result.failed == {"ncnn": "ncnn: out of memory"}
    assert set(result.best.ratios) == {"onednn"}


def test_missing_peers_are_reported_and_bestof_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "PEERS", (absent("absent_peer"),))
    with ExitStack() as stack:
        sides = Sides.start([1], stack)
        assert [side.name for side in sides.running] == ["machine", "native"]
        assert "absent_peer" in sides.missing["absent_peer"]
    monkeypatch.setattr(measuring, "NATIVE", absent("absent_native"))
    with ExitStack() as stack, pytest.raises(BenchError, match="absent_native"):
        Sides.start([1], stack)


def test_a_side_measures_in_a_process_of_its_own() -> None:
    with Side(NATIVE, 1) as side:
        prepared = side.prepare(SMALL)
        assert prepared["direct"].work == SMALL.flops
        times = side.time("direct", 0.001)
        assert times
        assert min(times) > 0
    with pytest.raises((BenchError, ValueError)):
        side.time("direct", 0.001)


def test_rows_hold_reach_scaling_and_ceiling() -> None:
    notation = LAYERS[0].notations[0]
    rows = rows_of([made_up(notation, threads=1, seconds=1.9), made_up(notation)])
    assert [(row.threads, row.algorithm, row.best) for row in rows] == [
        (1, "fast", True),
        (1, "onednn", False),
        (2, "fast", True),
        (2, "onednn", False),
    ]
    assert [row.reach for row in rows] == [None, None, 3.5, None]
    assert [row.scaling for row in rows] == [None, None, pytest.approx(1.9), None]
    assert rows[2].gflops == pytest.approx(16.0)
    assert rows[2].of_ceiling == pytest.approx(0.5)  # 4 GFLOP at 8 GFLOP/s
    assert rows[3].of_ceiling is None


def test_the_best_is_found_by_times_of_one_round() -> None:
    """Two rounds, the second of which was slow for all: the medians say otherwise."""
    (fast, peer) = made_up(LAYERS[0].notations[0]).times
    other = replace(
        fast,
        algorithm="other",
        seconds=Quartiles(0.8, 0.95, 1.1),
        ratios={"onednn": Quartiles(1, 1.5, 2)},
    )
    result = replace(made_up(LAYERS[0].notations[0]), times=(fast, other, peer))
    assert result.best == fast
    alone = [replace(one, ratios={}) for one in (fast, other)]
    assert replace(result, times=tuple(alone)).best.algorithm == "other"


def test_bfloat16_is_measured_beside_float32_and_promises_nothing() -> None:
    case = replace(parse_case("i6x9x9,k5x3x3,p1"), dtype="bfloat16")
    runs = native.prepare(case)
    names = {"convgemm", "convgemm_bf16", "convgemm_bf16, bfloat16"}
    assert names <= set(runs)
    assert not any("bf16" in name for name in native.prepare(replace(case, dtype="float32")))
    samples = {}
    for name in names:
        runs[name].call()
        samples[name] = runs[name].samples()
    rms = numpy.sqrt(numpy.mean(numpy.square(samples["convgemm"])))
    for name in names:
        numpy.testing.assert_allclose(samples[name], samples["convgemm"], atol=3e-2 * rms)
    assert samples["convgemm_bf16"] != samples["convgemm"]
    result = replace(made_up(LAYERS[0].notations[0], ratio=9.0), dtype="bfloat16")
    assert reaches([result]) == []
    assert [row.reach for row in rows_of([result])] == [None, None]
    assert result.key != made_up(LAYERS[0].notations[0]).key


def test_what_was_to_be_reached() -> None:
    results = [
        made_up(LAYERS[0].notations[0], ratio=3.6),
        made_up(LAYERS[0].notations[1], ratio=3.7),
    ]
    results += [
        made_up(one, ratio=value)
        for one, value in zip(LAYERS[1].notations[:3], (0.9, 1.2, 1.1), strict=True)
    ]
    found = {one.what: (one.reach, one.met) for one in reaches(results)}
    assert found == {
        "3x3 64->64 @224, forward, batch 8": (3.5, True),
        "3x3 128->128 @112, forward, batch 8": (3.8, False),
        "1x1 of ResNet50, forward, batch 8, median": (1.1, True),
    }
    scaled = [
        made_up(LAYERS[0].notations[0], threads=1, seconds=1.7),
        made_up(LAYERS[0].notations[0]),
    ]
    assert [one.met for one in reaches(scaled) if "threads" in one.what] == [False]


def test_kept_measurements_come_back(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    kept = kept_in(path, 5, 0.03)
    assert kept.read() == []
    results = [made_up(LAYERS[0].notations[0]), made_up(LAYERS[1].notations[0], threads=1)]
    for one in results:
        kept.add(one)
    assert kept.read() == results
    assert kept_in(path, 1, 0.03).read() == []  # fewer rounds are another measurement
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**asdict(results[0]), "times": 3}) + "\n")
    with pytest.raises(BenchError, match="line 3"):
        kept.read()


def test_a_picture_names_every_machine_of_a_kept_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one, path = made_up("i4x6x6,k8x3x3"), tmp_path / "rates.svg"
    draw_peers([replace(one, machine="A, 2 CPUs"), replace(one, machine="B, 4 CPUs")], {}, path)
    assert "<!-- A, 2 CPUs; B, 4 CPUs, peak 8 GFLOP/s" in path.read_text(encoding="utf-8")
    draw_peers([one], {}, path)
    assert "<!-- processor not noted, peak 8 GFLOP/s" in path.read_text(encoding="utf-8")
