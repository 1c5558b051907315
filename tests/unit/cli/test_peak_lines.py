"""The measured peaks, and the warning if they are too low."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from bestof.cli import profile as command  # noqa: E402
from bestof.cli.profile_tables import peak_lines  # noqa: E402
from bestof.profile import Profile  # noqa: E402
from bestof.profile import peak as measuring  # noqa: E402
from bestof.profile.peak import Peak, measure_peak  # noqa: E402

BUSY = "while True: pass"


def test_the_peaks_have_a_warning_if_other_processes_ran() -> None:
    first = "peaks measured on this machine: 120 GFLOP/s (float32), 25.0 GB/s"
    assert list(peak_lines(Peak(1.2e11, 2.5e10))) == [first]
    assert list(peak_lines(Peak(1.2e11, 2.5e10, others=0.4))) == [
        first,
        "warning: other processes took 40% of the processors meanwhile: the machine's peaks are "
        "higher",
    ]


def test_a_measurement_tells_of_a_process_beside_it() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY]) as beside:
        try:
            peak = measure_peak()
        finally:
            beside.kill()
    assert peak.others > 0
    assert peak.flops > 0
    assert peak.bandwidth > 0


def test_defaults_of_the_program_do_not_change_what_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied, copy = set(), torch.Tensor.copy_

    def noted(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        copied.add((target.nbytes, source.nbytes, target.device.type, source.device.type))
        return copy(target, source)

    monkeypatch.setattr(torch.Tensor, "copy_", noted)
    monkeypatch.setattr(measuring, "_ROUNDS", 1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        measure_peak()
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before)
    assert copied == {(measuring._COPIED, measuring._COPIED, "cpu", "cpu")}


def test_a_profile_is_told_if_the_peaks_cannot_be_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> Peak:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(measuring, "measure_peak", fails)
    told = command._with_peak(Profile("program", 1.0, (), notes=("before",)))
    assert told.peak is None
    assert told.notes[0] == "before"
    assert "no roofline: measuring them failed: RuntimeError: not enough memory" in told.notes[1]
