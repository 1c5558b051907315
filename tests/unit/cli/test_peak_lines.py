"""The measured peaks, and the warning if they are too low."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

from bestof.cli.profile_tables import peak_lines
from bestof.profile.peak import Peak, measure_peak

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
