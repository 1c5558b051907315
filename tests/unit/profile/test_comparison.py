"""Profiles are compared by step and by sample, and suspects are named where they are and nowhere
else."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bestof.cli import main
from bestof.cli.profile_tables import profile_lines
from bestof.errors import InvalidArgument
from bestof.profile import Profile, Span, Step
from bestof.profile.breakdown import breakdown
from bestof.profile.comparison import compare
from bestof.profile.gap import fragmentation_of, gaps_of
from bestof.profile.peak import Peak
from bestof.profile.steady import steady_of
from bestof.profile.suspect import suspects_between, suspects_of


def line(name: str, seconds: float = 0.1, **fields) -> Span:
    given = {
        **{
            "kind": "line",
            "source": "onednn",
            "module": "conv",
            "phase": "forward",
            "dtype": "f32",
        },
        **{"start": 0.0, "seconds": seconds, "self_seconds": seconds, "thread": 1, "step": 0},
        "operation": "aten::mkldnn_convolution",
    }
    return Span(name=name, **{**given, **fields})


def operation(name: str, seconds: float = 0.1, **fields) -> Span:
    own = {"kind": "operation", "source": "pytorch", "operation": name}
    return line(name, seconds, **{**own, **fields})


def profile_of(*spans: Span, samples: int = 4, wall: float = 1.0, **host: str) -> Profile:
    return Profile("fake", wall, tuple(spans), (Step(0.0, wall, samples),), 1, host=host)


def forward(**fields) -> Span:
    return line("convolution", direction="forward_training", **fields)


def weights(**fields) -> Span:
    return line("convolution", direction="backward_weights", phase="backward", **fields)


def test_steps_that_are_alike_are_aligned_at_their_least_times() -> None:
    slow, fast = (0.4, 0.1), (0.2, 0.3)
    spans = [forward(step=0, seconds=9.0, self_seconds=9.0), weights(step=0)]
    for step, times in ((1, slow), (2, fast)):
        spans += [
            forward(step=step, self_seconds=times[0]),
            weights(step=step, self_seconds=times[1]),
        ]
    steps = tuple(Step(float(n), n + 1.0, 4) for n in range(3))
    steady = steady_of(Profile("fake", 3.0, tuple(spans), steps, 1))
    assert [span.self_seconds for span in steady.spans] == [0.2, 0.1]
    assert steady.aligned == 2
    # Of two seconds one is explained, and the steady step keeps that share.
    assert steady.coverage == pytest.approx(0.5)
    assert steady.wall == pytest.approx(0.6)


def test_steps_with_a_few_other_sizes_are_aligned() -> None:
    def steps_of(*others: int) -> Profile:
        """100 calls a step, of which each step has so many of sizes of its own."""
        spans = [
            operation(
                "aten::add",
                0.1 - step / 100,
                step=step,
                problem=f"{step if place < others[step] else 7}",
            )
            for step in range(len(others))
            for place in range(100)
        ]
        steps = tuple(Step(float(n), n + 1.0, 4) for n in range(len(others)))
        return Profile("fake", float(len(others)), tuple(spans), steps, 1)

    few, many = steady_of(steps_of(0, 2, 2, 0)), steady_of(steps_of(0, 3, 3, 3))
    assert (few.aligned, many.aligned) == (3, 1)
    # The sizes differ in all steps: those of the first count, and of others the usual ones.
    assert {span.problem for span in few.spans[:2]} == {"1"}
    assert {span.problem for span in few.spans[2:]} == {"7"}
    assert few.spans[2].self_seconds == pytest.approx(0.07)


def test_a_breakdown_sums_work_and_time() -> None:
    spans = [
        forward(flops=2 * 10**9, bytes=10**6, seconds=0.5, self_seconds=0.5),
        forward(flops=10**9, bytes=10**6, seconds=0.25, self_seconds=0.25),
        operation("aten::relu", 0.25),
    ]
    rows = breakdown(steady_of(profile_of(*spans)), ("primitive",), Peak(8e9, 1e9))
    (top, other) = rows
    assert (top.keys, top.calls, top.flops) == (("convolution",), 2, 3 * 10**9)
    assert top.rate == pytest.approx(4e9)
    assert top.roofline == pytest.approx(0.5)
    assert top.share == pytest.approx(0.75)
    assert (other.keys, other.rate, other.roofline) == (("aten::relu",), None, None)


def test_gaps_are_counted_by_phase() -> None:
    spans = [
        operation("aten::first", start=0.2, seconds=0.2),
        operation("aten::inner", start=0.3, seconds=0.05),
        operation("aten::other thread", start=0.5, thread=2),
        operation("aten::second", start=0.7, seconds=0.1, phase="backward"),
    ]
    gaps = gaps_of(profile_of(*spans))
    assert [(gap.before, gap.after) for gap in gaps] == [
        ("the beginning of the step", "aten::first"),
        ("aten::first", "aten::second"),
    ]
    assert [gap.seconds for gap in gaps] == [pytest.approx(0.2), pytest.approx(0.3)]
    phases = {one.phase: (one.count, one.seconds) for one in fragmentation_of(gaps)}
    assert phases == {"forward": (1, pytest.approx(0.2)), "backward": (1, pytest.approx(0.3))}


def test_rows_of_one_side_are_marked() -> None:
    first, second = (
        profile_of(forward(), weights()),
        profile_of(forward(seconds=0.3, self_seconds=0.3)),
    )
    pairs = compare(steady_of(first), steady_of(second), ("direction",))
    assert [(pair.keys[0], pair.only) for pair in pairs] == [
        ("forward_training", ""),
        ("backward_weights", "A"),
    ]
    assert pairs[0].difference == pytest.approx(0.2)


def test_a_comparison_by_sample_divides_by_the_batch() -> None:
    first, second = profile_of(forward(), samples=2), profile_of(forward(), samples=10)
    (pair,) = compare(steady_of(first), steady_of(second), ("primitive",), per="sample")
    assert pair.seconds == (pytest.approx(0.05), pytest.approx(0.01))
    with pytest.raises(InvalidArgument, match="by sample"):
        compare(steady_of(first), steady_of(profile_of(forward(), samples=0)), ("phase",), "sample")


def reorder() -> Span:
    return line("reorder")


def norm(name: str) -> Span:
    return operation(name, module="norm", module_class="FrozenBatchNorm2d")


def elementwise(name: str, phase: str = "loss") -> Span:
    return operation(f"aten::{name}", module="", phase=phase)


def updates(name: str = "aten::add_") -> list[Span]:
    return [operation(name, phase="optimizer", module="") for _ in range(9)]


FOCAL = [elementwise(name) for name in ("sigmoid", "pow", "mul", "mul", "add")]

# What makes a suspect, and the nearest thing that must not.
SUSPECTS: dict[str, tuple[Sequence[Span], Sequence[Span]]] = {
    "reorders around every convolution": (
        [forward(), reorder(), reorder()],
        [forward(), forward(), reorder()],
    ),
    "reference implementation": (
        [forward(implementation="ref:any")],
        [forward(implementation="brg_conv:avx512")],
    ),
    "convolutions outside of oneDNN": (
        [operation("aten::_slow_conv2d_forward"), operation("aten::_slow_conv2d_backward")],
        [operation("aten::mkldnn_convolution"), forward()],
    ),
    "norm that fell apart": (
        [norm("aten::mul"), norm("aten::add")],
        [norm("aten::mul"), norm("aten::add"), norm("aten::native_batch_norm")],
    ),
    "loss in half precision": (
        [replace(FOCAL[0], dtype="bf16")],
        [replace(elementwise("_to_copy"), dtype="bf16"), FOCAL[0]],
    ),
    "optimizer without fused=True": (updates(), [*updates(), *updates("aten::_fused_adam_")]),
    "chain bound by memory": (FOCAL, [*FOCAL[:3], forward(), *FOCAL[3:]]),
}


@pytest.mark.parametrize("name", SUSPECTS)
def test_a_suspect_is_named_where_it_is(name: str) -> None:
    guilty, innocent = SUSPECTS[name]
    found = {one.name: one for one in suspects_of(profile_of(*guilty))}
    assert name in found
    assert found[name].seconds > 0
    assert found[name].reason
    assert found[name].remedy
    assert name not in {one.name for one in suspects_of(profile_of(*innocent))}


@pytest.mark.parametrize(("weights", "told"), [(2, "larger batches"), (1, "channels_last")])
def test_reorders_of_weights_and_images_have_remedies_of_their_own(weights: int, told: str) -> None:
    # The convolution has a weight of 8x4x3x3, and an image of 2x4x9x9.
    call = operation("aten::mkldnn_convolution", problem="2x4x9x9:8x4x3x3:8")
    own = [line("reorder", problem="8x4x3x3") for _ in range(weights)]
    images = [line("reorder", problem="2x4x9x9") for _ in range(3 - weights)]
    (found,) = suspects_of(profile_of(call, *own, *images, forward()))
    assert f"3 reorders, {weights} of weights and {3 - weights} of images" in found.reason
    assert told in found.remedy


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("norm that fell apart", "bestof.torch.frozen_batch_norm"),
        ("optimizer without fused=True", "bestof.torch.optim.LAMB"),
        ("chain bound by memory", "bestof.torch.sigmoid_focal_loss"),
    ],
)
def test_a_remedy_names_an_operator_that_exists(name: str, operator: str) -> None:
    found = {one.name: one for one in suspects_of(profile_of(*SUSPECTS[name][0]))}
    assert operator in found[name].remedy
    assert callable(pkgutil.resolve_name(operator))


def test_a_chain_that_is_no_loss_gets_another_remedy() -> None:
    chain = [elementwise(name, phase="forward") for name in ("sigmoid", "pow", "mul", "add")]
    (found,) = suspects_of(profile_of(*chain))
    assert found.remedy == "torch.compile fuses such chains"


def test_threads_beyond_the_processors_are_a_suspect() -> None:
    def names(threads: str) -> list[str]:
        profile = profile_of(forward(), threads=threads, processors="2")
        return [one.name for one in suspects_of(profile)]

    assert names("4") == ["more threads than processors"]
    assert names("2") == []


def test_a_frozen_layer_with_a_weight_gradient_is_found_between_two_profiles() -> None:
    frozen, trained = profile_of(forward()), profile_of(forward(), weights())
    (found,) = suspects_between(steady_of(frozen), steady_of(trained))
    assert found.name == "weight gradient of a frozen layer"
    assert "conv" in found.reason
    assert suspects_between(steady_of(trained), steady_of(frozen)) == []


def test_a_type_that_fell_back_is_found_between_two_profiles() -> None:
    half, full = profile_of(forward(dtype="bf16")), profile_of(forward())
    (found,) = suspects_between(steady_of(half), steady_of(full))
    assert found.name == "type that fell back to float32"
    assert suspects_between(steady_of(full), steady_of(half)) == []


@pytest.mark.parametrize(
    ("problems", "told"),
    [
        ("a", "1 step"),
        ("ab", "2 steps; the second one is taken"),
        ("abb", "3 steps; 2 issued the same calls: the least time of each position is taken"),
        ("aabc", "4 steps; no two after the first issued the same calls: the one of median time "),
    ],
)
def test_the_head_tells_which_step_is_taken(problems: str, told: str) -> None:
    spans = [forward(step=step, problem=problem) for step, problem in enumerate(problems)]
    steps = tuple(Step(step, step + 1.0) for step in range(len(problems)))
    line = profile_lines(Profile("fake", 9.0, tuple(spans), steps, 1))[1]
    assert line.startswith(told)
    assert ";" in told or line == told


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[str, Profile], str]:
    def keep(name: str, profile: Profile) -> str:
        profile.save(tmp_path / name)
        return str(tmp_path / name)

    return keep


def test_the_command_compares_two_files(
    kept: Callable[[str, Profile], str], capsys: pytest.CaptureFixture[str]
) -> None:
    first = kept("a.json", profile_of(forward(), samples=2))
    second = kept("b.json", profile_of(forward(), weights(), samples=8))
    assert main(["compare", first, second]) == 0
    out = capsys.readouterr().out
    assert "ms a sample, batch 2" in out
    assert "only in B" in out
    assert "weight gradient of a frozen layer" in out
    picture = str(Path(first).with_name("picture.svg"))
    assert main(["compare", first, second, "--picture", picture]) == 0
    drawn = Path(picture).read_text()
    assert "convolution backward_weights" in drawn
    assert "<!-- A: a -->" in drawn  # both profiles are of one program
    assert "<!-- B: b -->" in drawn
    capsys.readouterr()
    assert main(["compare", first, second, "--json", "--per", "step"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["per"] == "step"
    assert content["suspects"]["B beside A"][0]["seconds"] == pytest.approx(0.1)


def test_what_differs_between_the_machines_is_told(
    kept: Callable[[str, Profile], str], capsys: pytest.CaptureFixture[str]
) -> None:
    first = kept("a.json", profile_of(forward(), threads="1", torch="2.13.0", processors="2"))
    second = kept("b.json", profile_of(forward(), threads="2", torch="2.13.0"))
    assert main(["compare", first, second]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "differ in" in line]
    assert told == ["A and B differ in threads: 1 and 2"]
    assert main(["compare", first, second, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hosts"][1]["threads"] == "2"


def test_a_picture_that_cannot_be_written_is_refused_first(
    kept: Callable[[str, Profile], str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    first = kept("a.json", profile_of(forward()))
    picture = str(tmp_path / "missing" / "picture.svg")
    assert main(["compare", first, first, "--picture", picture]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"bestof: cannot write a picture to {picture!r}: No such file or directory\n"


def test_logs_can_be_compared_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs = Path(__file__).parent / "logs"
    assert main(["compare", str(logs / "onednn-2.3.log"), str(logs / "onednn-2.6.log")]) == 0
    assert "matmul" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["x", "y"], ["x", "y", "--by", "colour"], ["x", "y", "--rows", "0"]]
)
def test_wrong_usage_is_reported(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *arguments]) == 2
    assert capsys.readouterr().err.startswith("bestof: ")


def test_the_notes_of_both_profiles_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, notes in (("a.json", ()), ("b.json", ("other processes took 43%",))):
        replace(profile_of(forward(module="")), notes=notes).save(tmp_path / name)
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("notes of B:\n  other processes took 43%\n")
    assert "notes of A" not in printed
    assert "(outside of modules)" in printed
