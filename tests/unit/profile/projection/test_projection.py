"""Problems are replayed as they were logged, and a projection adds up what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from bestof import profile  # noqa: E402
from bestof.cli import main  # noqa: E402
from bestof.errors import ProfileError  # noqa: E402
from bestof.profile.log import read_lines  # noqa: E402
from bestof.profile.peak import Peak  # noqa: E402
from bestof.profile.projection import projection  # noqa: E402
from bestof.profile.projection.alternatives import alternatives_of  # noqa: E402
from bestof.profile.projection.aten_call import AROUND, FRAMEWORK  # noqa: E402
from bestof.profile.projection.benchdnn import benchdnn_line  # noqa: E402
from bestof.profile.projection.measured import Kept, Measured  # noqa: E402
from bestof.profile.projection.onednn_library import library  # noqa: E402
from bestof.profile.projection.onednn_primitive import primitives_of  # noqa: E402
from bestof.profile.projection.problem import Problem  # noqa: E402
from bestof.profile.projection.projection import (  # noqa: E402
    Projection,
    problems_of,
    project,
)
from bestof.profile.projection.symbols import addresses  # noqa: E402
from bestof.profile.steady import steady_of  # noqa: E402
from bestof.profile.stopwatch import Disturbance  # noqa: E402
from bestof.profile.verbose.line import Line  # noqa: E402

CALM = Disturbance(0.0, 0.0)


@pytest.fixture(scope="module")
def trained() -> profile.Profile:
    """Two steps of a model with strides, pads, groups and a depthwise layer."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
        nn.Conv2d(16, 32, (1, 3), padding=(0, 1), groups=2),
        nn.Flatten(),
        nn.Linear(32 * 36, 4),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile.capture() as captured:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3, 12, 12)).sum().backward()
            optimizer.step()
    return captured.profile


def distinct(trained: profile.Profile) -> list[tuple[Problem, Line]]:
    return problems_of(steady_of(trained), torch.get_num_threads(), None)


def test_every_line_of_a_step_is_replayed_as_it_was_printed(trained: profile.Profile) -> None:
    lines = [line for _, line in distinct(trained) if line.source == "onednn"]
    assert {line.primitive for line in lines} >= {"convolution", "reorder"}
    runs = []
    for line in lines:
        primitive = next(iter(primitives_of(library(), line, free_layouts=False)))
        runs.append(primitive.bind())
    with profile.capture() as captured:
        for run in runs:
            run()
    # What oneDNN says of the replay is what it had said of the call.
    printed = [
        read_lines([span.text]).lines[0]
        for span in captured.profile.spans
        if span.source == "onednn"
    ]
    assert [line.implementation for line in printed] == [line.implementation for line in lines]
    assert [line.problem for line in printed] == [line.problem for line in lines]
    assert [line.layout for line in printed] == [line.layout for line in lines]
    assert [line.direction for line in printed] == [line.direction for line in lines]


def test_a_replayed_convolution_computes_a_convolution() -> None:
    text = (
        "onednn_verbose,v1,primitive,exec,cpu,convolution,x,forward_inference,"
        "src:f32::blocked:abcd::f0 wei:f32::blocked:abcd::f0 bia:undef::undef::: "
        "dst:f32::blocked:abcd::f0,,alg:convolution_direct,"
        "mb2_ic3oc4_ih6oh5kh3sh1dh0ph1_iw7ow4kw2sw2dw0pw1,1"
    )
    (line,) = read_lines([text]).lines
    primitive = next(iter(primitives_of(library(), line, free_layouts=False)))
    torch.manual_seed(0)
    x, w, y = torch.rand(2, 3, 6, 7), torch.rand(4, 3, 3, 2), torch.full((2, 4, 5, 4), torch.nan)
    tensors = {1: x, 33: w, 17: y, 80: torch.zeros(1 << 20)}
    memories = {
        one.role: library().create(
            "dnnl_memory_create", one.descriptor, library().engine, tensors[one.role].data_ptr()
        )
        for one in primitive.operands
    }
    library().execute(primitive.handle, memories)
    # 5 rows by a pad of 1 above and 1 below less one; 4 columns of stride 2.
    padded = nn.functional.pad(x.double(), (1, 0, 1, 0))
    expected = nn.functional.conv2d(padded, w.double(), stride=(1, 2))
    assert expected.shape == y.shape
    # A sum of 18 products of numbers below 1.
    assert (y.double() - expected).abs().max() <= 18 * 18 * torch.finfo(torch.float32).eps


def replayable(line: Line) -> str:
    """Return why a line cannot be replayed, empty where it can."""
    try:
        for one in alternatives_of(line):
            one.free()
            return ""
    except ProfileError as error:
        return str(error)
    return "no way to compute it is known"


def test_a_line_that_cannot_be_replayed_says_why() -> None:
    text = (
        "onednn_verbose,v1,primitive,exec,cpu,softmax,x,forward_inference,"
        "src:f32::blocked:ab::f0,,,8x8,1"
    )
    (softmax,) = read_lines([text]).lines
    assert replayable(softmax) == "softmax is not replayed"
    assert "ran on gpu" in replayable(replace(softmax, primitive="reorder", engine="gpu"))
    fused = replace(softmax, primitive="reorder", attributes="attr-post-ops:sum")
    assert "attr-post-ops:sum" in replayable(fused)


def test_a_reorder_with_strides_keeps_them() -> None:
    # As an LSTM's weights are reordered: rows of 8 values, 11 apart.
    text = (
        "onednn_verbose,v1,primitive,exec,cpu,reorder,x,undef,src:f32::blocked:ab::f0 "
        "dst:f32::blocked:ab:11x1:f0,,,4x8,1"
    )
    (line,) = read_lines([text]).lines
    primitive = next(iter(primitives_of(library(), line, free_layouts=False)))
    source, target = torch.rand(4, 8), torch.zeros(4, 11)
    memories = {
        one.role: library().create(
            "dnnl_memory_create", one.descriptor, library().engine, tensor.data_ptr()
        )
        for one, tensor in zip(primitive.operands, (source, target), strict=False)
    }
    library().execute(primitive.handle, memories)
    assert torch.equal(target[:, :8], source)


@pytest.mark.parametrize("training", [False, True])
def test_the_products_of_a_transformer_are_placed_and_replayed(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True).train(training)
    x = torch.ones(2, 5, 16)
    with profile.capture() as captured, torch.set_grad_enabled(training):
        result = layer(x)
        if training:
            result.sum().backward()
    products = [span for span in captured.profile.spans if span.source == "mkl"]
    if not products:
        pytest.skip("this PyTorch has no MKL")
    assert captured.profile.unattributed == 0
    assert all(span.flops > 0 for span in products)
    # Two layers of 16 x 24, and the attention's 16 x 48 and 16 x 16, over 10 rows. The gradients
    # take twice as much in addition.
    dense = [span for span in products if span.operation.endswith(("mm", "_addmm_activation"))]
    dense = [span for span in dense if span.operation != "aten::bmm"]
    forward = 2 * 10 * (2 * 16 * 24 + 16 * 48 + 16 * 16)
    assert sum(span.flops for span in dense) == forward * (1 + 2 * training) - (
        2 * 10 * 16 * 48 * training  # nobody wants the gradient of the input
    )
    assert all(replayable(line) == "" for _, line in distinct(captured.profile))


def test_bestofs_kernels_are_among_the_ways(trained: profile.Profile) -> None:
    for problem, line in distinct(trained):
        kinds = {}
        for one in alternatives_of(line):
            kinds.setdefault(one.kind, []).append(one.name)
            one.free()
        assert len(kinds["same"]) == 1
        assert ("bestof" in kinds) == (problem.primitive == "convolution")


def test_a_projection_measures_and_continues(
    trained: profile.Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady, path = steady_of(trained), tmp_path / "kept.jsonl"
    # Time for all of them, also on a busy machine.
    monkeypatch.setattr(projection, "_MOST", 0.002)
    done = project(steady, 1, Peak(1e11, 1e10), 600.0, Kept.at(path))
    measured = [one for one in done.problems if one.measured]
    assert len(measured) > 20
    assert len(done.convolutions) == 6
    assert all(one.same_implementation for one in measured)
    assert 0 < done.coverage <= 1
    # A later run reads what is known, and has no time for anything else.
    again = project(steady, 1, Peak(1e11, 1e10), 0.0, Kept.at(path))
    assert [one for one in again.problems if one.measured] == measured
    assert again.convolutions == done.convolutions
    assert len(path.read_text().splitlines()) == len(measured) + 6
    reasons = {one.reason for one in again.problems if not one.measured}
    assert reasons <= {AROUND, FRAMEWORK}


def test_measurements_of_another_machine_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.jsonl"
    monkeypatch.setenv("BESTOF_HOST", "this machine")
    Kept.at(path).add("a", [Measured("same", "onednn", 1.0, None)])
    assert list(Kept.at(path).known) == ["a"]
    monkeypatch.setenv("BESTOF_HOST", "another machine")
    assert not Kept.at(path).known


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--picture", "missing/p.svg"], "cannot write a picture to 'missing/p.svg'"),
        (["--resume", "missing/kept"], "cannot write measurements to 'missing/kept'"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_measurement(
    arguments: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bestof.cli.project.measure_peak", None)
    profile.Profile("program", 1.0, ()).save("p.json")
    assert main(["project", "p.json", *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_a_time_that_never_ends_is_refused(seconds: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["project", str(tmp_path / "p.json"), "--seconds", seconds])


def test_a_damaged_file_of_measurements_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    path.write_text('{"key": "a", "measured": []}\n{"key"\n')
    with pytest.raises(ProfileError, match="line 2"):
        Kept.at(path)


def problem(seconds: float, *measured: Measured, roofline: float = 0.1) -> Problem:
    return Problem(
        *("key", "convolution", "forward", "onednn:jit", "mb1", 2, seconds, ("conv",)),
        measured=measured,
        roofline=roofline,
    )


def test_ceilings_add_up_and_never_exceed_the_observed_time() -> None:
    same = Measured("same", "oneDNN jit", 0.4, 0.6)
    onednn = Measured("onednn", "oneDNN brg", 0.3, 0.35)
    own = Measured("bestof", "bestof winograd4", 0.1, 0.45)
    done = Projection(4.0, (problem(1.0, same, onednn, own), problem(0.5)), CALM, 2)
    assert done.coverage == pytest.approx(0.25)
    assert [
        done.projected(name, cold=False) for name in ("as logged, alone", "oneDNN's choice")
    ] == [
        pytest.approx(0.8),
        pytest.approx(0.6),
    ]
    # Cold, the logged call took longer alone than in the program: that is no loss.
    assert done.projected("as logged, alone", cold=True) == pytest.approx(1.0)
    layouts = Measured("implementation", "oneDNN jit, its own layouts", 0.05, 0.05)
    other = Projection(4.0, (problem(1.0, same, onednn, own, layouts),), CALM, 2)
    # `enable` chooses neither layouts nor implementations of oneDNN.
    assert other.projected("with `enable`", cold=False) == pytest.approx(0.2)
    assert other.projected("with `enable`", cold=True) == pytest.approx(0.9)
    assert other.projected("best of all", cold=True) == pytest.approx(0.1)
    assert done.projected("best of all", cold=False) == pytest.approx(0.2)
    assert done.projected("best of all", cold=True) == pytest.approx(0.7)
    assert done.roofline() == pytest.approx(0.2)


def test_the_expected_time_is_as_cold_as_the_calls_were() -> None:
    same = Measured("same", "oneDNN jit", 0.4, 0.6)
    own = Measured("bestof", "bestof winograd4", 0.1, 0.3)
    wholly_hot, half, wholly_cold = (problem(2 * one, same, own) for one in (0.3, 0.5, 0.8))
    assert [one.coldness for one in (wholly_hot, half, wholly_cold)] == pytest.approx([0, 0.5, 1])
    done = Projection(4.0, (wholly_hot, half, wholly_cold), CALM, 2)
    rest = 4.0 - 2 * (0.3 + 0.5 + 0.8)
    assert done.expected("as logged, alone") == pytest.approx(rest + 2 * (0.3 + 0.5 + 0.6))
    assert done.expected("with `enable`") == pytest.approx(rest + 2 * (0.1 + 0.2 + 0.3))
    # Without the logged call, or a difference, the cold times count.
    assert problem(1.0, own).coldness == 1
    assert problem(1.0, Measured("same", "oneDNN jit", 0.4, None)).coldness == 1


def test_advice_trusts_the_greater_of_both_times() -> None:
    same = Measured("same", "oneDNN jit", 0.5, 0.5)
    hot_only = Measured("bestof", "bestof winograd6", 0.01, 0.6)
    steady = Measured("bestof", "bestof winograd4", 0.2, 0.25)
    done = Projection(2.0, (problem(1.0, same, hot_only, steady), problem(1.0, same)), CALM, 2)
    ((_, best, saved),) = done.advice()
    assert best.name == "bestof winograd4"
    assert saved == pytest.approx(0.5)


def test_a_missing_library_is_reported() -> None:
    with pytest.raises(ProfileError, match=r"libnothing\.so is not loaded"):
        addresses("libnothing.so", ["f"])


def test_benchdnn_gets_the_types_and_layouts(trained: profile.Profile) -> None:
    texts = [benchdnn_line(line) for _, line in distinct(trained) if line.source == "onednn"]
    assert all(texts)
    assert any("--dir=BWD_WB" in text and "--dt=f32:f32:f32" in text for text in texts)
    assert benchdnn_line(read_lines(["MKL_VERBOSE SGEMM(N,N,1,2,3,0x1) 1us"]).lines[0]) is None


def test_the_command_projects_a_profile(
    trained: profile.Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained.save(tmp_path / "p.json")
    assert (
        main(
            [
                "project",
                str(tmp_path / "p.json"),
                "--seconds",
                "1",
                "--threads",
                "1",
                "--picture",
                str(tmp_path / "p.svg"),
            ]
        )
        == 0
    )
    assert "best of all, cold" in (tmp_path / "p.svg").read_text()
    out = capsys.readouterr().out
    assert "distinct problems replayed with 1 threads" in out
    assert "best of all" in out
    assert main(["project", str(tmp_path / "p.json"), "--seconds", "0.2", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (
        content["ceilings"]["best of all"]["hot"] <= content["ceilings"]["as logged, alone"]["hot"]
    )
    assert main(["project", str(tmp_path / "p.json"), "--benchdnn"]) == 0
    assert "benchdnn --conv" in capsys.readouterr().out
    assert main(["project", str(tmp_path / "p.json"), "--seconds", "0"]) == 2
