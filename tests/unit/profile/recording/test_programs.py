"""Programs with several optimizers, with ranges of their own, and with other unusual parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from bestof import profile  # noqa: E402
from bestof.errors import ProfileError  # noqa: E402
from bestof.profile.recording.recorder import Recorder  # noqa: E402
from bestof.profile.recording.schedule import Schedule  # noqa: E402
from bestof.profile.steady import steady_of  # noqa: E402
from bestof.torch.process.step_ends import StepEnds  # noqa: E402

X = torch.ones(5, 3, 12, 12)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(400, 4))


def phases(found: profile.Profile) -> dict[str, set[str]]:
    """Return the phases of the operations of each name."""
    by_name: dict[str, set[str]] = {}
    for span in found.spans:
        by_name.setdefault(span.name, set()).add(span.phase)
    return by_name


@pytest.mark.parametrize("kinds", [(torch.optim.Adam, torch.optim.SGD), (torch.optim.SGD,) * 2])
def test_all_optimizers_of_a_step_belong_to_it(
    kinds: tuple[type[torch.optim.Optimizer], ...],
) -> None:
    model = network()
    halves = model[0].parameters(), model[2].parameters()
    optimizers = [kind(half, lr=0.1) for kind, half in zip(kinds, halves, strict=True)]
    with profile.capture() as captured:
        for _ in range(4):
            nn.functional.cross_entropy(model(X), torch.zeros(5).long()).backward()
            for one in optimizers:
                one.step()
                one.zero_grad()
    found = captured.profile
    assert [step.samples for step in found.steps] == [5] * 4
    steady = steady_of(found)
    assert steady.aligned == 3
    assert {"forward", "loss", "backward", "optimizer"} <= {one.phase for one in steady.spans}


def test_a_step_ends_with_the_optimizer_that_leads() -> None:
    first, second, third = object(), object(), object()
    ends = StepEnds()
    assert [ends.ends_step(one) for one in (first, second, third) * 3] == [True, False, False] * 3
    # Later, the program trains with the others only.
    assert [ends.ends_step(one) for one in (first, second, third)] == [True, False, False]
    assert [ends.ends_step(one) for one in (second, third) * 3] == [True, False] * 3


def test_a_schedule_counts_steps_and_not_optimizers() -> None:
    model = network()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model[0], model[2])]
    schedule = Schedule("program", skip=0, steps=2)
    schedule.start()
    for _ in range(4):
        model(X).sum().backward()
        for one in optimizers:
            one.step()
    found = schedule.stop()
    assert found is not None
    assert [step.samples for step in found.steps] == [5, 5]


def test_ranges_of_the_program_change_neither_phases_nor_steps() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile.capture() as captured:
        for _ in range(3):
            with torch.profiler.record_function("my step"):
                with torch.profiler.record_function("my forward pass"):
                    y = model(X)
                nn.functional.cross_entropy(y, torch.zeros(5).long()).backward()
                optimizer.step()
    found = captured.profile
    assert [step.samples for step in found.steps] == [5] * 3
    seen = phases(found)
    assert seen["aten::convolution"] == {"forward"}
    assert seen["aten::nll_loss_forward"] == {"loss"}
    assert seen["aten::convolution_backward"] == {"backward"}


def test_calls_of_a_model_in_a_range_are_steps() -> None:
    model = network().eval()
    with profile.capture() as captured, torch.no_grad():
        for _ in range(3):
            with torch.profiler.record_function("inference"):
                model(X)
    assert [step.samples for step in captured.profile.steps] == [5] * 3


def test_modules_that_a_checkpoint_calls_again_have_no_batch_of_a_step() -> None:
    class Folds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(12, 12), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x.reshape(-1, 12), use_reentrant=False)

    model = Folds()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile.capture() as captured:
        for _ in range(4):
            model(X).square().mean().backward()
            optimizer.step()
    assert [step.samples for step in captured.profile.steps] == [5] * 4


def test_names_of_modules_may_hold_anything() -> None:
    model = nn.Sequential()
    model.add_module("line\n\ud800", nn.Linear(3, 4))
    with profile.capture() as captured, torch.no_grad():
        model(torch.ones(2, 3))
    assert {span.module for span in captured.profile.spans if span.module} == {"line\\n\\ud800"}


@pytest.mark.parametrize("method", ["start", "stop"])
def test_a_recording_that_fails_leaves_the_program_alone(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_recorder: Recorder) -> None:
        raise OSError(24, "Too many open files")

    stop: Callable[[Recorder], object] = Recorder.stop
    schedule = Schedule("program", skip=1, steps=1)
    monkeypatch.setattr(Recorder, method, fails)
    schedule.start()
    with torch.no_grad():
        for _ in range(4):
            network()(X)
    with pytest.raises(ProfileError, match=r"the recording failed: OSError: .*Too many open"):
        schedule.stop()
    if method == "stop":
        stop(schedule._recorder)
