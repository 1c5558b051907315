"""Each trap says of made-up observations whether it was met, what it costs, and what mends it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from bestof.doctor import table
from bestof.doctor.compilations import Compilations
from bestof.doctor.gain import Gain
from bestof.doctor.seen import Call, Seen
from bestof.doctor.traps import half_types, mkl_on_amd, openmp_runtimes
from bestof.doctor.traps.compile_breaks import CompileBreaks
from bestof.doctor.traps.denormals import Denormals
from bestof.doctor.traps.half_types import HalfTypes
from bestof.doctor.traps.inactive import Inactive
from bestof.doctor.traps.loader import StarvingLoader
from bestof.doctor.traps.mkl_on_amd import MklOnAmd
from bestof.doctor.traps.openmp_runtimes import OpenmpRuntimes
from bestof.doctor.traps.optimizer import UnfusedOptimizer
from bestof.doctor.traps.page_faults import PageFaults
from bestof.doctor.traps.shapes import NewShapes
from bestof.doctor.traps.spinning import Spinning
from bestof.doctor.traps.suspects import Suspects
from bestof.doctor.traps.threads import Threads
from bestof.processors import Room
from bestof.profile.suspect import Suspect
from bestof.torch.process.openmp import on_each_thread, runtimes

TWICE = Gain([(2.0, 1.0), (2.2, 1.1), (2.4, 1.2)])
NOTHING = Gain([(1.0, 1.0), (1.0, 1.1)])
QUOTA = "the quota of its control group is 2 processors"


def seen(threads: int = 2, room: int = 2) -> Seen:
    return Seen(threads, Room(room, QUOTA))


def test_names_of_traps_differ() -> None:
    names = [one.name for one in table.traps(True)]
    assert len(set(names)) == len(names) == 13
    machine = [one.name for one in table.traps(False)]
    assert machine == [one.name for one in table.traps(True) if not one.of_program]
    assert "optimizer not fused" not in machine


def test_threads_above_the_quota_are_a_trap_without_a_measurement() -> None:
    (found,) = Threads().findings(seen(64, 2))
    assert found.caught
    assert found.factor is None
    assert f"64 threads, but {QUOTA}" in found.seen
    assert "OMP_NUM_THREADS=2" in found.cure


def test_fewer_threads_are_tried_and_undone() -> None:
    before = torch.get_num_threads()
    try:
        treatment = Threads().treatment(seen(2, 8))
        torch.set_num_threads(3)  # by the program, later
        assert treatment is not None
        treatment.apply()
        assert torch.get_num_threads() == 1
        treatment.undo()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    one = seen(1, 1)
    assert Threads().treatment(one) is None
    assert not Threads().findings(one)[0].caught


def test_fewer_threads_are_advised_only_if_steps_are_faster() -> None:
    observed = seen(2, 2)
    observed.gains["threads"] = NOTHING
    (found,) = Threads().findings(observed)
    assert not found.caught
    assert found.cure == ""
    observed.gains["threads"] = TWICE
    (found,) = Threads().findings(observed)
    assert found.caught
    assert found.factor == pytest.approx(2.0)
    assert "torch.set_num_threads(1)" in found.cure


def test_spinning_is_not_tried_where_the_environment_limits_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    assert Spinning().treatment(seen()) is None
    assert Spinning().findings(seen())[0].caught is False
    monkeypatch.delenv("GOMP_SPINCOUNT")
    treatment = Spinning().treatment(seen())
    if not any("libgomp" in one for one in runtimes()):
        pytest.skip("needs GCC's OpenMP")
    assert treatment is not None
    treatment.apply()
    treatment.undo()
    observed = seen()
    observed.gains["spinning threads"] = TWICE
    (found,) = Spinning().findings(observed)
    assert found.caught
    assert "GOMP_SPINCOUNT=1000" in found.cure


def test_an_unfused_optimizer_is_fused_for_the_trial() -> None:
    model = nn.Linear(3, 3)
    plain, fused = (
        torch.optim.Adam(model.parameters()),
        torch.optim.SGD(model.parameters(), lr=1.0, fused=True),
    )
    trap, observed = UnfusedOptimizer(), seen()
    assert trap.findings(observed)[0].caught is False
    observed.optimizers = [fused]
    assert trap.treatment(observed) is None
    observed.optimizers = [plain, fused]
    treatment = trap.treatment(observed)
    assert treatment is not None
    treatment.apply()
    assert plain.param_groups[0]["fused"] is True
    treatment.undo()
    assert plain.param_groups[0]["fused"] is None
    assert fused.param_groups[0]["fused"] is True
    observed.gains[trap.name] = TWICE
    (found,) = trap.findings(observed)
    assert found.caught
    assert "fused=True" in found.cure


def test_denormals_are_flushed_for_the_trial_in_every_thread() -> None:
    trap, observed = Denormals(), seen(torch.get_num_threads())
    assert trap.treatment(observed) is None
    assert trap.findings(observed)[0].caught is None
    observed.denormals, observed.sampled = 25, 100
    treatment = trap.treatment(observed)
    assert treatment is not None
    tiny = torch.full((1 << 20,), 1e-39)  # on all threads
    treatment.apply()
    try:
        assert not (tiny * 0.5).any()
    finally:
        treatment.undo()
    assert (tiny * 0.5).all()
    assert "25.00% of the elements" in trap.findings(observed)[0].seen


def test_on_each_thread_calls_on_as_many_threads() -> None:
    called: list[int] = []
    on_each_thread(lambda: called.append(1), 2)
    assert len(called) == 2 or not runtimes()


def test_waiting_for_batches_is_a_share_of_the_time() -> None:
    observed = seen()
    assert StarvingLoader().findings(observed)[0].caught is None
    observed.steps = 10
    assert StarvingLoader().findings(observed)[0].caught is False
    observed.waits, observed.seconds = 3.0, 4.0
    (found,) = StarvingLoader().findings(observed)
    assert found.caught
    assert found.factor == pytest.approx(4.0)
    assert "75% of the time" in found.seen
    observed.waits = 0.04
    assert not StarvingLoader().findings(observed)[0].caught


def test_new_shapes_are_compared_by_the_time_of_an_element() -> None:
    observed = seen()
    (found,) = NewShapes().findings(observed)
    assert found.caught is None
    assert found.seen == "too few calls were seen: 0"
    observed.calls = [Call(True, 5, 99.0)]  # the first call is left out
    observed.calls += [Call(True, 10, 30.0), Call(False, 20, 20.0)] * 10
    (found,) = NewShapes().findings(observed)
    assert found.caught
    assert found.factor == pytest.approx(3.0)
    assert "ONEDNN_PRIMITIVE_CACHE_CAPACITY=64" in found.cure  # one kernel for each shape is kept
    observed.calls = [Call(False, 10, 1.0)] * 50
    assert NewShapes().findings(observed)[0].caught is False


def test_page_faults_are_counted_for_each_step() -> None:
    observed = seen()
    assert PageFaults().findings(observed)[0].caught is None
    observed.faults, observed.steps = 900, 10
    assert PageFaults().treatment(observed) is None
    assert "90 page faults a step" in PageFaults().findings(observed)[0].seen
    observed.faults = 9000
    assert PageFaults().treatment(observed) is not None


def test_two_runtimes_are_found_in_the_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f0-7f1 r-xp 00000000 fe:00 1  /a b/libgomp-1a2b.so.1\n"
        "7f1-7f2 r-xp 00000000 fe:00 1  /a b/libgomp-1a2b.so.1\n"
        "7f2-7f3 r-xp 00000000 fe:00 4  /old/libgomp.so.1 (deleted)\n"  # by an update
        "7f3-7f4 r-xp 00000000 fe:00 2  /opt/libiomp5.so\n"
        "7f5-7f6 r-xp 00000000 fe:00 3  /opt/libompl.so\n"
        "7ff-800 rw-p 00000000 00:00 0\n"
    )
    assert runtimes(maps) == ["/a b/libgomp-1a2b.so.1", "/opt/libiomp5.so"]
    assert runtimes(tmp_path / "missing") == []
    monkeypatch.setattr(openmp_runtimes, "runtimes", lambda: ["/one.so"])
    (found,) = OpenmpRuntimes().findings(seen())
    assert found.caught is False
    loaded = runtimes()
    if loaded:
        monkeypatch.setattr(openmp_runtimes, "runtimes", lambda: loaded[:1] * 2)
        (found,) = OpenmpRuntimes().findings(seen())
        assert re.search(r"region takes [\d.]+ \w?s in place of [\d.]+ \w?s$", found.seen)


@pytest.mark.parametrize(("turns", "caught"), [(9e-6, False), (14e-3, True)])
def test_two_runtimes_are_a_trap_if_regions_in_turn_are_dearer(
    turns: float, caught: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openmp_runtimes, "runtimes", lambda: ["/a.so", "/b.so"])
    monkeypatch.setattr(openmp_runtimes, "empty_region", lambda path, _: path)
    monkeypatch.setattr(
        openmp_runtimes, "_seconds", lambda regions: turns if len(set(regions)) == 2 else 8e-6
    )
    (found,) = OpenmpRuntimes().findings(seen())
    assert found.caught is caught
    assert bool(found.cure) is caught  # programs that read `--json` would take it for needed


def test_the_cure_of_two_runtimes_keeps_pytorchs_threads() -> None:
    program = (
        "import torch, sklearn.datasets\n"
        "from threadpoolctl import ThreadpoolController\n"
        "from bestof.doctor.seen import Seen\n"
        "from bestof.doctor.traps import openmp_runtimes\n"
        "from bestof.doctor.traps.openmp_runtimes import OpenmpRuntimes\n"
        "from bestof.processors import Room\n"
        "from bestof.torch.process.openmp import runtimes\n"
        "torch.set_num_threads(2)\n"
        "openmp_runtimes._DEARER = 0.0\n"  # however fast this machine is
        "(found,) = OpenmpRuntimes().findings(Seen(2, Room(2, '')))\n"
        "eval(found.cure.partition(', of the package threadpoolctl')[0])\n"
        "own, other = runtimes()\n"
        "left = ThreadpoolController().select(filepath=other).lib_controllers\n"
        "assert [one.num_threads for one in left] == [1]\n"
        "assert torch.get_num_threads() == 2\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env=os.environ | {"OMP_NUM_THREADS": "2"}
    )


def test_half_types_count_only_if_the_program_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {torch.float32: 1.0, torch.bfloat16: 0.5, torch.float16: 40.0}
    monkeypatch.setattr(half_types, "_seconds", times.__getitem__)
    observed = seen()
    assert HalfTypes().findings(observed)[0].caught is None
    observed.dtypes = Counter({"torch.float32": 1})
    assert HalfTypes().findings(observed)[0].caught is False
    observed.dtypes = Counter({"torch.bfloat16": 1})
    assert HalfTypes().findings(observed)[0].caught is False
    observed.dtypes["torch.float16"] = 1
    (found,) = HalfTypes().findings(observed)
    assert found.caught
    assert found.factor == pytest.approx(40.0)


def test_products_of_mkl_are_compared_on_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mkl_on_amd, "_vendor", lambda: "GenuineIntel")
    assert MklOnAmd().findings(seen())[0].caught is False
    monkeypatch.setattr(mkl_on_amd, "_vendor", lambda: "AuthenticAMD")
    monkeypatch.setattr(mkl_on_amd, "_fastest", lambda *_: [3.0, 2.0])
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    (found,) = MklOnAmd().findings(seen())
    assert found.caught
    assert found.factor == pytest.approx(1.5)


def test_kernels_are_compared_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """On several, the times would be those of waiting for busy neighbours."""
    before, threads = torch.get_num_threads(), []

    def timed(*what: object) -> list[float]:
        threads.append(torch.get_num_threads())
        return [3.0, 2.0]

    monkeypatch.setattr(half_types, "_seconds", lambda dtype: timed(dtype)[0])
    monkeypatch.setattr(mkl_on_amd, "_vendor", lambda: "AuthenticAMD")
    monkeypatch.setattr(mkl_on_amd, "_fastest", timed)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    torch.set_num_threads(2)
    try:
        HalfTypes().findings(seen())
        (found,) = MklOnAmd().findings(seen())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == [1] * 4
    assert found.of == "products"  # not of steps


def test_what_the_compiler_counts_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("torch._dynamo.utils")
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", fake)
    assert CompileBreaks().findings(seen())[0].caught is False
    counters = {"frames": Counter(total=3, ok=3), "graph_break": Counter()}
    fake.counters = counters  # type: ignore[attr-defined]
    fake.compilation_time_metrics = {"_compile.compile_inner": [1.0, 2.5]}  # type: ignore[attr-defined]
    (found,) = CompileBreaks().findings(seen())
    assert found.caught is False
    assert "3 compilations in 3.5 s" in found.seen
    counters["graph_break"]["call to\n print"] = 2
    (found,) = CompileBreaks().findings(seen())
    assert found.caught
    assert "2 graph breaks" in found.seen
    assert "the first break: call to print" in found.seen
    observed = seen()
    observed.compilations = Compilations(1, 0, 0, "", 0.5)  # before steps were profiled
    assert CompileBreaks().findings(observed)[0].caught is False


def test_suspects_of_the_profile_are_told_unless_they_are_measured() -> None:
    observed = seen()
    assert Suspects().findings(observed)[0].caught is None
    observed.suspects = []
    assert Suspects().findings(observed)[0].caught is False
    observed.suspects = [
        Suspect("optimizer without fused=True", 1.0, "r", "m"),
        Suspect("reference implementation", 0.5, "oneDNN runs x by ref", "change the layout"),
    ]
    (found,) = Suspects().findings(observed)
    assert (found.trap, found.cure) == ("reference implementation", "change the layout")
    assert "500.00 ms a step" in found.seen


def test_what_is_inactive_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Inactive().findings(seen())[0].caught is False
    summary = types.SimpleNamespace(left_out=(("product", "the trial has failed"),))
    monkeypatch.setattr("bestof.torch.summary", lambda: summary)
    (found,) = Inactive().findings(seen())
    assert found.caught
    assert "keeps product: the trial has failed" in found.seen
