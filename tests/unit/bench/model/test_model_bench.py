"""`bestof bench model`: how peers are compared, with peers that answer what the test says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bestof.bench.model import matrix as model_matrix
from bestof.bench.model import measure as bench
from bestof.bench.model.device import waited_for
from bestof.bench.model.job import Job
from bestof.bench.model.matrix import measure_matrix
from bestof.bench.model.measure import Effort, measure_model
from bestof.bench.model.models import MODELS, find_model
from bestof.bench.model.peers.prepared import Prepared
from bestof.bench.model.peers.table import PEERS, ModelPeer, find_peers
from bestof.bench.model.result import MatrixRow, ModelTimes
from bestof.errors import BenchError, InvalidArgument

EAGER, LAST, NCNN, ENABLE = find_peers(("eager", "eager-last", "ncnn", "enable"))
LOGITS = np.array([[1.0, -1.0, 2.0]])


class Script:
    """What each peer does: seconds a round, its result, the order at which it fails."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.results: dict[str, Any] = {}
        self.fails: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []
        self.alone = False

    def start(self, job: Job) -> FakeProcess:
        return FakeProcess(self, job.peer)


class FakeProcess:
    def __init__(self, script: Script, peer: str) -> None:
        self.script, self.peer, self.rounds = script, peer, 0

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.script.asked.append(("end", self.peer))

    def ask(self, order: str, *, patience: float, **arguments: Any) -> dict[str, Any]:
        self.script.asked.append((order, self.peer))
        assert self.script.alone == (order in {"settle", "time", "pair", "bound"})
        if self.script.fails.get(self.peer) == order:
            raise BenchError("it did not\nwork")
        if "file" in arguments:
            of = {"rounded": "autocast", "exact": "exact"}.get(order, self.peer)
            np.save(arguments["file"], self.script.results.get(of, LOGITS))
        if order == "time":
            self.rounds += 1
            return {"seconds": [self.script.seconds[self.peer][self.rounds - 1]] * 2}
        return {
            "prepare": {"seconds": 4.0, "peak": 3000},
            "memory": {"peak": 2000},
            "first": {"seconds": [3.0]},
            "settle": {"seconds": [2.0, 1.0], "settled": self.peer != "enable", "trials": 5},
            "pair": {"own": [2.0, 1.0, 1.0], "replaced": [1.0, 2.0, 3.0], "difference": 1e-6},
            "bound": {"peak": 2e9, "seconds": 0.5},
            "again": {},
            "exact": {},
            "rounded": {},
        }[order]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script()
    monkeypatch.setattr(bench, "start_peer", made.start)
    monkeypatch.setattr(model_matrix, "start_peer", made.start)
    monkeypatch.setattr(ModelPeer, "missing", property(lambda peer: ()))
    return made


def measure(
    script: Script, peers: tuple[ModelPeer, ...], rounds: int = 3, **options: Any
) -> ModelTimes:
    @contextmanager
    def alone() -> Iterator[None]:
        script.alone = True
        yield
        script.alone = False

    return measure_model(Job("resnet18", **options), peers, Effort(rounds=rounds), alone=alone)


def test_each_process_of_a_plan_has_a_row_of_its_own(script: Script) -> None:
    script.seconds = {"eager": [8], "enable": [2]}
    times = measure(script, (ENABLE,), rounds=1, plans=3)
    assert [peer.name for peer in times.peers] == ["enable"] * 3
    assert script.asked.count(("prepare", "enable")) == 3
    assert times.bound is None  # nothing is held against the peak


@pytest.mark.parametrize("how", ["done", "failed", "bfloat16"])
def test_the_bound_is_measured_where_the_peak_is_known(script: Script, how: str) -> None:
    script.seconds = {"eager": [8], "enable": [2]}
    if how == "failed":
        script.fails = {"eager": "bound"}
    dtype = "bfloat16" if how == "bfloat16" else "float32"
    times = measure(script, (EAGER, ENABLE), rounds=1, dtype=dtype)
    assert (times.peak, times.bound) == ((2e9, 0.5) if how == "done" else (None, None))
    assert [peer.seconds for peer in times.peers] == [8, 2]


def test_ratios_are_against_the_best_other_peer_round_by_round(script: Script) -> None:
    script.seconds = {"eager": [8, 8, 8], "ncnn": [4, 6, 4], "enable": [2, 2, 1]}
    times = measure(script, (EAGER, NCNN, ENABLE))
    assert times.best == "ncnn"
    eager, ncnn, enable = times.peers
    assert (eager.ratio, ncnn.ratio, enable.ratio) == (0.5, 1.0, 3.0)
    assert (enable.low, enable.high) == (2.5, 3.5)
    assert enable.seconds == 2
    assert (eager.settled, enable.settled) == (None, False)
    assert enable.first_seconds == (3.0, 2.0, 1.0)
    assert enable.prepare_seconds == 7.0
    assert (enable.prepare_bytes, enable.peak_bytes) == (3000, 2000)


@pytest.mark.parametrize(("lost", "right"), [(0.0, False), (0.2, False), (0.25, True)])
def test_what_rounds_to_bfloat16_may_lose_what_autocast_loses(
    script: Script, lost: float, right: bool
) -> None:
    script.seconds = {"eager": [1, 1, 1], "optimize-relaxed": [1, 1, 1]}
    size = np.sqrt(np.mean(np.square(LOGITS)))
    script.results = {"optimize-relaxed": LOGITS + 0.33 * size, "autocast": LOGITS + lost * size}
    (relaxed,) = find_peers(("optimize-relaxed",))
    (_, time) = measure(script, (EAGER, relaxed)).peers
    assert (time.reason is None) == right


@pytest.mark.parametrize(("lost", "right"), [(0.0, False), (0.2, False), (0.25, True)])
def test_models_of_bfloat16_are_compared_with_their_result_in_float32(
    script: Script, lost: float, right: bool
) -> None:
    """Every peer may lose 1.5 times what PyTorch loses; those of float32 alone are left out."""
    script.seconds = {"eager": [1, 1, 1], "openvino": [1, 1, 1]}
    size = np.sqrt(np.mean(np.square(LOGITS)))
    script.results = {"openvino": LOGITS + 0.33 * size, "eager": LOGITS + lost * size}
    peers = (EAGER, *find_peers(("openvino",)), NCNN)
    found = measure(script, peers, dtype="bfloat16").peers
    assert [one.name for one in found] == ["eager", "openvino"]
    assert found[0].error == pytest.approx(lost)
    assert (found[1].reason is None) == right
    assert ("rounded", "eager") not in script.asked


def test_memory_is_weighed_last_and_no_reason_to_lose_a_time(script: Script) -> None:
    script.seconds = {"eager": [1, 1, 1], "enable": [1, 1, 1]}
    script.fails = {"enable": "memory"}
    eager, enable = measure(script, (EAGER, ENABLE)).peers
    assert (eager.peak_bytes, enable.peak_bytes) == (2000, None)
    assert (enable.seconds, enable.reason) == (1, None)
    assert [asked for asked in script.asked if asked[1] == "enable"][-2:] == [
        ("memory", "enable"),
        ("end", "enable"),
    ]


def test_peers_take_turns_and_none_always_follows_the_same(script: Script) -> None:
    script.seconds = {"eager": [1, 1], "ncnn": [1, 1], "enable": [1, 1]}
    measure(script, (EAGER, NCNN, ENABLE), rounds=2)
    assert [peer for order, peer in script.asked if order == "time"] == [
        "eager",
        "ncnn",
        "enable",
        "ncnn",
        "enable",
        "eager",
    ]
    assert sorted(peer for order, peer in script.asked if order == "end") == [
        "eager",
        "enable",
        "ncnn",
    ]


@pytest.mark.parametrize("order", ["prepare", "first", "settle", "time"])
def test_a_peer_that_fails_is_a_row_that_says_so(order: str, script: Script) -> None:
    script.seconds = {"eager": [1, 1, 1], "ncnn": [1, 1, 1]}
    script.fails = {"ncnn": order}
    eager, ncnn = measure(script, (EAGER, NCNN)).peers
    assert eager.seconds == 1
    assert (ncnn.seconds, ncnn.reason) == (None, "it did not\nwork")
    assert [asked for asked in script.asked if asked[1] == "ncnn"][-2:] == [
        (order, "ncnn"),
        ("end", "ncnn"),
    ]


@pytest.mark.parametrize(
    "result",
    [LOGITS + 0.02, LOGITS * np.nan, LOGITS[:, :2]],
    ids=["another number", "NaN", "another shape"],
)
def test_a_wrong_peer_is_never_the_best(result: Any, script: Script) -> None:
    script.seconds = {"eager": [1, 1, 1], "ncnn": [0.1] * 3, "enable": [1] * 3}
    script.results = {"ncnn": result}
    times = measure(script, (EAGER, NCNN, ENABLE))
    assert times.best == "eager"
    assert times.peers[1].seconds is None
    assert "wrong" in str(times.peers[1].reason)


def test_a_result_in_another_shape_but_with_the_same_numbers_is_right(script: Script) -> None:
    script.seconds = {"eager": [1, 1, 1], "ncnn": [1] * 3}
    script.results = {"ncnn": LOGITS.reshape(3).astype(np.float32)}
    assert measure(script, (EAGER, NCNN)).peers[1].error == pytest.approx(0, abs=1e-7)


def test_pytorch_runs_in_any_case_but_is_shown_where_it_was_asked_for(script: Script) -> None:
    script.seconds = {"eager": [1, 1, 1], "enable": [2, 2, 2]}
    times = measure(script, (ENABLE,))
    assert [peer.name for peer in times.peers] == ["enable"]
    assert (times.best, times.peers[0].ratio) == (None, None)
    assert times.peers[0].error == 0


def test_only_those_that_train_are_asked_to(script: Script) -> None:
    script.seconds = {"eager": [1, 1, 1], "enable": [1] * 3}
    assert [peer.name for peer in measure(script, (EAGER, NCNN, ENABLE), train=True).peers] == [
        "eager",
        "enable",
    ]


def test_a_missing_peer_is_never_started(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelPeer, "missing", property(lambda peer: peer.needs))
    script.seconds = {"eager": [1, 1, 1]}
    assert measure(script, (EAGER, NCNN)).peers[1].reason == "not installed: ncnn, pnnx"
    assert all(peer == "eager" for _, peer in script.asked)


def test_the_matrix_pairs_rounds(script: Script) -> None:
    @contextmanager
    def alone() -> Iterator[None]:
        script.alone = True
        yield
        script.alone = False

    jobs = [Job("resnet18"), Job("resnet18", train=True)]
    script.fails = {"optimize": "prepare"}
    rows = measure_matrix(
        jobs, find_peers(("eager", "enable", "optimize")), Effort(rounds=3), alone=alone
    )
    assert [(row.job.train, row.name) for row in rows] == [
        (False, "enable"),
        (False, "optimize"),
        (True, "enable"),
    ]
    assert (rows[0].ratio, rows[0].low, rows[0].high) == (2.0, 1.25, 2.5)
    assert (rows[0].seconds, rows[0].replaced_seconds) == (1.0, 2.0)
    assert rows[1].reason == "it did not\nwork"
    assert not any(row.below for row in rows)
    assert MatrixRow(jobs[0], "enable", ratio=0.9, low=0.8, high=0.979).below


@pytest.mark.parametrize("options", [{"batch": 0}, {"threads": 0}])
def test_numbers_below_one(options: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match="expected at least 1; got 0"):
        Job("resnet18", **options)


@pytest.mark.parametrize(
    "options", [{"rounds": 0}, {"calls": 0}, {"seconds": -1}, {"settle": -1}, {"steps": -1}]
)
def test_effort_that_cannot_be_made(options: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match="expected at least"):
        Effort(**options)


def test_names_are_distinguished() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    assert len({model.name for model in MODELS}) == len(MODELS)
    assert PEERS[0].name == "eager"
    with pytest.raises(InvalidArgument, match=r"no peer 'fly'; the peers are eager, "):
        find_peers(("fly",))
    with pytest.raises(InvalidArgument, match=r"no model 'fly'; the models are vgg16, "):
        find_model("fly")


@pytest.mark.parametrize("size", [(0, 32), (31, 32), (64, 65)])
def test_sizes_that_five_halvings_do_not_divide(size: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument, match="multiples of 32"):
        find_model("resnet18").build(size, narrow=True)


def test_equal_arguments_build_equal_weights() -> None:
    one, other = (find_model("resnet18").build(narrow=True).state_dict() for _ in range(2))
    assert all((one[name] == other[name]).all() for name in one)


@pytest.mark.long
def test_real_processes(tmp_path: Path) -> None:
    effort = Effort(rounds=2, seconds=0, calls=1, settle=0.2)
    times = measure_model(
        Job("resnet18", 2, narrow=True), (EAGER, LAST, ENABLE), effort, layers=True
    )
    assert all(peer.seconds is not None and peer.reason is None for peer in times.peers), (
        times.peers
    )
    assert all(peer.error is not None and peer.error < 1e-4 for peer in times.peers)
    assert {layer.name for layer in times.layers} == {"forward"}
    assert times.layers[0].notation.startswith("i3x64x64,k16x7x7,b2,s2,p3")
    training = measure_model(
        Job("resnet18", 2, train=True, narrow=True), (EAGER, ENABLE), effort, layers=True
    )
    assert all(peer.seconds is not None for peer in training.peers), training.peers
    assert {layer.name for layer in training.layers} == {
        "forward",
        "input gradient",
        "weight gradient",
    }


@pytest.mark.long
def test_real_pairs() -> None:
    effort = Effort(rounds=2, seconds=0, calls=1, settle=0.2)
    jobs = [Job("resnet18", 2, narrow=True), Job("resnet18", 2, train=True, narrow=True)]
    rows = measure_matrix(jobs, find_peers(("enable", "optimize")), effort)
    assert [(row.job.train, row.name, row.reason) for row in rows] == [
        (False, "enable", None),
        (False, "optimize", None),
        (True, "enable", None),
    ]
    assert all(row.ratio is not None and row.ratio > 0 and row.trials >= 0 for row in rows)
    assert all(row.error is not None and row.error < 1e-4 for row in rows)


@pytest.mark.long
def test_a_process_that_cannot_run_the_job_says_why() -> None:
    effort = Effort(rounds=1, seconds=0, calls=1, settle=0)
    times = measure_model(Job("resnet18", size=(33, 33), narrow=True), (EAGER, ENABLE), effort)
    assert all(
        peer.seconds is None and "multiples of 32" in str(peer.reason) for peer in times.peers
    )


def test_on_a_device_a_call_ends_with_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("waited"))

    def run() -> int:
        done.append("ordered")
        return 7

    prepared = Prepared(run, lambda: 3, lambda: nullcontext(run))
    assert waited_for(prepared, "cpu") is prepared
    waiting = waited_for(prepared, "cuda")
    assert waiting.trials is prepared.trials
    assert waiting.run() == 7
    assert waiting.replaced is not None
    with waiting.replaced() as original:
        assert original() == 7
    assert done == ["ordered", "waited"] * 2
    assert waited_for(Prepared(run), "cuda").replaced is None


def test_only_those_that_can_run_on_the_device(script: Script) -> None:
    able = ("eager", "eager-last", "compile", "compile-max", "enable", "enable-last")
    script.seconds = {name: [1.0] for name in able}
    times = measure_model(
        Job("unet", device="cuda"), PEERS, Effort(rounds=1), alone=lambda: quiet(script)
    )
    assert tuple(peer.name for peer in times.peers) == able
    assert {peer for _, peer in script.asked} == set(able)


@contextmanager
def quiet(script: Script) -> Iterator[None]:
    script.alone = True
    yield
    script.alone = False
