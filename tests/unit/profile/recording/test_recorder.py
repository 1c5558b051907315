"""A region of a PyTorch program is captured, and every line finds its module."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from bestof import profile  # noqa: E402
from bestof.errors import ProfileError  # noqa: E402
from bestof.profile.recording import recorder  # noqa: E402
from bestof.profile.recording.schedule import Schedule  # noqa: E402
from bestof.profile.steady import steady_of  # noqa: E402
from bestof.profile.stopwatch import Disturbance  # noqa: E402

LINE = {
    **{"kind": "line", "source": "mkl", "name": "matmul"},
    **dict.fromkeys(("start", "seconds", "self_seconds"), 0.0),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3)
        self.head = nn.Linear(8 * 8 * 8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.head(self.second(x).flatten(1))


def train(steps: int, model: nn.Module | None = None) -> None:
    model = model or Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.ones(5, 3, 12, 12)), torch.zeros(5).long())
        loss.backward()
        optimizer.step()


@pytest.fixture(autouse=True)
def _on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add no note on other processes, such as those of other tests."""
    monkeypatch.setattr(recorder, "_OTHERS", 2.0)


@pytest.fixture(scope="module")
def trained() -> profile.Profile:
    with profile.capture("training") as captured:
        train(4)
    return captured.profile


def test_every_line_has_its_module_and_its_operation(trained: profile.Profile) -> None:
    lines = [span for span in trained.spans if span.kind == "line"]
    assert trained.unknown == 0, trained.examples
    assert trained.unattributed == 0
    convolutions = {(span.module, span.direction) for span in lines if span.name == "convolution"}
    assert convolutions == {
        ("first", "forward_training"),
        ("first", "backward_weights"),
        ("second", "forward_training"),
        ("second", "backward_data"),
        ("second", "backward_weights"),
    }
    assert {span.module for span in lines if span.source == "mkl"} <= {"head"}
    assert {span.operation for span in lines if span.module == "first"} == {
        "aten::mkldnn_convolution",
        "aten::convolution_backward",
    }


def test_steps_and_phases_are_distinguished(trained: profile.Profile) -> None:
    assert [step.samples for step in trained.steps] == [5] * 4
    seen = {span.phase for span in trained.spans if span.self_seconds > 0}
    assert {"forward", "loss", "backward", "optimizer"} <= seen
    assert {span.phase for span in trained.spans if span.name == "aten::nll_loss_forward"} == {
        "loss"
    }
    assert {span.phase for span in trained.spans if span.direction.startswith("backward_")} == {
        "backward"
    }


def test_self_times_add_up_to_no_more_than_the_wall_time(trained: profile.Profile) -> None:
    for number, step in enumerate(trained.steps):
        own = [one for one in trained.spans if one.step == number and one.thread == trained.thread]
        assert 0 < sum(one.self_seconds for one in own) <= step.seconds * 1.001


def test_steps_are_aligned(trained: profile.Profile) -> None:
    steady = steady_of(trained)
    assert steady.aligned >= 2
    assert steady.coverage is not None
    names = [
        span.name for span in steady.spans if span.kind == "line" and span.name == "convolution"
    ]
    assert len(names) == 5


def test_a_profile_is_kept_and_read_back(trained: profile.Profile, tmp_path) -> None:
    trained.save(tmp_path / "profile.json")
    assert profile.load_profile(tmp_path / "profile.json") == trained


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("wall", "long", "wall: expected float; got 'long'"),
        ("wall", float("nan"), "wall: expected a finite number"),
        ("lines", True, "lines: expected int; got True"),
        ("title", None, "title: expected str; got None"),
        ("notes", "one", "notes: expected a list of texts"),
        ("host", {"threads": 2}, "host: expected a list of texts"),
        ("steps", [{"start": "0", "end": 1.0}], "start: expected float; got '0'"),
        ("spans", [1], "Span: expected a dict; got 1"),
        ("spans", [{**LINE, "source": "x"}], "source: expected one of onednn, mkl, bestof"),
        ("spans", [{**LINE, "step": 3}], "step: expected one of the steps, or -1"),
        ("marks", [{"track": "x", "name": "", "start": 0.0}], "track: expected one of trials, "),
        ("peak", {"flops": 0.0, "bandwidth": 1.0}, "peak: expected positive numbers"),
    ],
)
def test_a_profile_with_a_wrong_type_is_refused(
    name: str, value: object, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "damaged.json"
    profile.Profile("title", 1.0, ()).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(ProfileError, match=re.escape(told)):
        profile.load_profile(path)


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", "[" * 200_000, '{"format": "bestof profile 1"}']
)
def test_another_file_is_no_profile(content: str, tmp_path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ProfileError, match=r"other\.json"):
        profile.load_profile(path)


def test_a_region_that_raises_is_kept() -> None:
    def fail() -> None:
        train(2)
        raise KeyError("program")

    captured = profile.capture()
    with pytest.raises(KeyError, match="program"), captured:
        fail()
    assert len(captured.profile.steps) == 2


def test_only_one_capture_runs_at_a_time() -> None:
    with profile.capture() as outer, pytest.raises(ProfileError, match="already running"):
        profile.capture().start()
    assert outer.profile.lines == 0
    with profile.capture() as again:
        train(1)
    assert again.profile.lines > 0


def test_the_programs_output_is_untouched(capfd: pytest.CaptureFixture[str]) -> None:
    with profile.capture():
        print("before", flush=True)
        train(1)
        os.write(1, b"between\n")
        os.system("echo child")
        print("after", flush=True)
    out, _ = capfd.readouterr()
    assert out == "before\nbetween\nchild\nafter\n"


def test_output_of_other_c_code_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    import ctypes  # noqa: PLC0415

    with profile.capture() as captured:
        ctypes.CDLL(None).puts(b"from C")
        train(1)
    assert capfd.readouterr().out == "from C\n"
    assert captured.profile.lines > 0


def test_a_region_may_close_its_output(capfd: pytest.CaptureFixture[str]) -> None:
    kept = os.dup(1)
    try:
        with profile.capture() as captured:
            os.close(1)
            train(1)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert captured.profile.lines > 0
    assert capfd.readouterr().out == ""


def test_programs_that_ask_for_lines_still_get_them(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_VERBOSE", "1")
    with profile.capture() as captured:
        train(1)
    torch._C._verbose.mkldnn_set_verbose(0)
    printed = [line for line in capfd.readouterr().out.splitlines() if ",exec," in line]
    assert len(printed) == sum(span.source == "onednn" for span in captured.profile.spans) > 0


def test_modules_of_an_inference_are_steps() -> None:
    model = Block().eval()
    with profile.capture() as captured, torch.no_grad():
        for _ in range(3):
            model(torch.ones(2, 3, 12, 12))
    assert [step.samples for step in captured.profile.steps] == [2, 2, 2]
    assert {span.module for span in captured.profile.spans if span.name == "convolution"} == {
        "first",
        "second",
    }


def test_a_module_that_raises_leaves_no_open_range() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("inside")

    model = nn.Sequential(nn.Conv2d(3, 4, 3), Fails())
    good = nn.Sequential(nn.Conv2d(3, 4, 3))
    with profile.capture() as captured, torch.no_grad():
        with pytest.raises(ValueError, match="inside"):
            model(torch.ones(2, 3, 12, 12))
        good(torch.ones(2, 3, 12, 12))
    assert [span.module for span in captured.profile.spans if span.name == "convolution"] == [
        "0",
        "0",
    ]


def test_other_processes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_OTHERS", 0.1)
    monkeypatch.setattr(recorder.Watch, "read", lambda _watch, _calls: Disturbance(0.43, 0.0))
    with profile.capture() as captured:
        train(1)
    (note,) = captured.profile.notes
    assert "took 43% of the processors" in note


def test_a_program_that_switches_the_lines_off_gets_a_message() -> None:
    with profile.capture() as captured:
        train(1)
        torch._C._verbose.mkldnn_set_verbose(0)
        train(1)
    (note,) = captured.profile.notes
    assert "2 of 4 calls of oneDNN printed no line" in note


@pytest.mark.parametrize("own", [torch.profiler.profile, torch.autograd.profiler.profile])
def test_a_capture_ends_where_the_program_starts_pytorchs_profiler(own) -> None:
    with profile.capture() as captured:
        train(2)
        with own() as recorded:
            train(1)
        train(1)
    found = captured.profile
    assert "the program started PyTorch's profiler" in found.notes[0]
    assert len(found.steps) == 2
    assert found.lines > 0
    assert found.unattributed == 0
    # The program's own recording is complete, and free of our ranges.
    recorded = getattr(recorded, "profiler", recorded)
    names = [one.name for one in recorded.function_events]
    assert names.count("aten::mkldnn_convolution") == 2
    assert not any(name.startswith("bestof") for name in names)
    with profile.capture() as again:
        train(1)
    assert not again.profile.notes


def test_a_region_waits_for_a_thread_that_ends_its_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    merge, merging, left = recorder.merge, threading.Event(), threading.Event()

    def slow(*arguments: object) -> profile.Profile:
        merging.set()
        left.wait(0.5)  # the region below does not leave before this is over
        return merge(*arguments)

    def other() -> None:
        with torch.autograd.profiler.profile():
            pass

    monkeypatch.setattr(recorder, "merge", slow)
    thread = threading.Thread(target=other)
    with profile.capture() as captured:
        torch.ones(3).add(1)
        thread.start()
        assert merging.wait(250)
    found = captured.profile
    left.set()
    thread.join()
    assert "the program started PyTorch's profiler" in found.notes[0]


def test_a_schedule_keeps_what_it_recorded_before_pytorchs_profiler() -> None:
    schedule = Schedule("program", skip=0, steps=5)
    schedule.start()
    train(2)
    with torch.profiler.profile():
        train(4)
    found = schedule.stop()
    assert found is not None
    assert len(found.steps) == 2


def test_a_recording_that_cannot_begin_leaves_the_program_alone() -> None:
    schedule = Schedule("program", skip=1, steps=1)
    schedule.start()
    with torch.profiler.profile():
        train(3)
    with pytest.raises(ProfileError, match="already running"):
        schedule.stop()


def test_a_capture_inside_of_pytorchs_profiler_is_refused() -> None:
    with torch.profiler.profile(), pytest.raises(ProfileError, match="already running"):
        profile.capture().start()
    with profile.capture() as captured:
        train(1)
    assert captured.profile.lines > 0


def test_modules_that_are_added_or_replaced_get_their_names() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    x = torch.ones(1, 3, 12, 12)
    with profile.capture() as captured, torch.no_grad():
        model(x)
        model[1] = nn.Conv2d(4, 4, 3)
        model(x)
        model.append(nn.Conv2d(4, 4, 3))
        model(x)
        nn.ReLU()(nn.Sequential(nn.Conv2d(3, 4, 3))(x))  # another outermost module
        model(x)
    names = [span.module for span in captured.profile.spans if span.name == "aten::convolution"]
    assert names == [*"01", *"01", *"012", "0", *"012"]
