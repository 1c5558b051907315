"""A capture tells lines of other threads apart, and leaves child processes alone."""

from __future__ import annotations

import os
import re
import threading

import pytest

torch = pytest.importorskip("torch")

from test_recorder import Block, train  # noqa: E402
from torch import nn  # noqa: E402

from bestof import profile  # noqa: E402
from bestof.profile.recording.schedule import Schedule  # noqa: E402


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # since Python 3.12, of any thread
def test_steps_of_a_forked_child_end_no_recording() -> None:
    schedule = Schedule("program", skip=0, steps=2)
    schedule.start()
    train(1)
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            for _ in range(4):
                nn.Identity()(torch.ones(1))
        os._exit(schedule._state != "running")
    assert os.waitpid(child, 0)[1] == 0
    train(3)
    found = schedule.stop()
    assert found is not None
    assert len(found.steps) == 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # since Python 3.12, of any thread
def test_lines_of_a_forked_child_are_not_the_parents(capfd: pytest.CaptureFixture[str]) -> None:
    with profile.capture() as captured:
        train(1)
        child = os.fork()
        if child == 0:
            # A child prints to its own output, and has no capture to end.
            import ctypes  # noqa: PLC0415

            ctypes.CDLL(None).puts(b"child")
            ctypes.CDLL(None).fflush(None)
            os._exit(0)
        os.waitpid(child, 0)
    assert "child" in capfd.readouterr().out
    assert captured.profile.unknown == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # since Python 3.12, of any thread
def test_lines_that_wait_at_a_fork_are_counted_once() -> None:
    with profile.capture() as captured:
        # The reader of the lines would empty the buffer at any time. This stops it.
        with captured._output._lock:
            train(1)
            child = os.fork()
            if child == 0:
                import ctypes  # noqa: PLC0415

                ctypes.CDLL(None).fflush(None)
                os._exit(0)
        os.waitpid(child, 0)
    lines = [span for span in captured.profile.spans if span.name == "convolution"]
    assert len(lines) == 5
    assert captured.profile.unattributed == 0


def test_lines_of_other_threads_have_their_operations() -> None:
    models = [nn.Sequential(nn.Conv2d(3, width, 3)) for width in (4, 8)]

    def run(model: nn.Module) -> None:
        with torch.no_grad():
            for _ in range(5):
                model(torch.ones(2, 3, 12, 12))

    with profile.capture() as captured:
        threads = [threading.Thread(target=run, args=(model,)) for model in models]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert captured.profile.unattributed == 0
    lines = [span for span in captured.profile.spans if span.name == "convolution"]
    found = {(span.thread, re.sub("_.*", "", span.problem.split("oc")[1])) for span in lines}
    assert len(lines) == 10
    assert {span.module for span in lines} == {"0"}
    assert sorted(channels for _, channels in found) == ["4", "8"]
    assert len(captured.profile.steps) == 5


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # since Python 3.12, of any thread
def test_workers_of_a_loader_disturb_nothing() -> None:
    data = torch.utils.data.TensorDataset(torch.ones(8, 3, 12, 12))
    model = Block().eval()
    with profile.capture() as captured, torch.no_grad():
        for (x,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
            model(x)
    assert [step.samples for step in captured.profile.steps] == [4, 4]
    assert "loading" in {span.phase for span in captured.profile.spans}
    assert captured.profile.unattributed == 0
