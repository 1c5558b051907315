"""The host's fingerprint, from the processor descriptions of several machines."""

from __future__ import annotations

import sys

import pytest

from bestof.selection.identity.host import fingerprint, host, parse_cpuinfo

V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"
PYTHON = f"python {sys.version_info.major}.{sys.version_info.minor}"

CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R)   Platinum 8480+
stepping\t: 8
flags\t\t: fpu {flags}
power management:

processor\t: 1
model name\t: Another
"""
ARM = """\
processor\t: 0
Features\t: fp asimd asimddp sve bf16 i8mm
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f
CPU revision\t: 1
"""


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (V2, "x86-64-v2"),
        (V3 + " avx_vnni", "x86-64-v3 avx_vnni"),
        (V4, "x86-64-v4"),
        (V4 + " amx_tile amx_bf16 avx512_bf16", "x86-64-v4 avx512_bf16 amx_tile amx_bf16"),
        (V3 + " avx512f", "x86-64-v3 avx512f"),
    ],
)
def test_the_instruction_set_is_a_level_and_what_lies_beyond(flags: str, level: str) -> None:
    fields = parse_cpuinfo(CPUINFO.format(flags=flags).splitlines(keepends=True))
    assert (
        fingerprint(fields, 56)
        == f"Intel(R) Xeon(R) Platinum 8480+ 6/143/8; {level}; 56 cpus; {PYTHON}"
    )


def test_a_level_counts_only_with_the_levels_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    flags = V4.replace("popcnt ", "")
    assert (
        fingerprint({"model name": "x", "flags": flags}, 1)
        == f"x; x86_64 avx512f; 1 cpus; {PYTHON}"
    )


def test_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("platform.processor", lambda: "")
    found = fingerprint(parse_cpuinfo(ARM.splitlines()), 64)
    assert (
        found == f"aarch64 0x41/0xd4f/0x0/1; aarch64 asimd asimddp i8mm bf16 sve; 64 cpus; {PYTHON}"
    )


def test_the_host_is_one_line_and_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BESTOF_HOST", raising=False)
    assert host() == host()
    assert host().endswith(PYTHON)
    assert "\n" not in host()


def test_the_environment_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESTOF_HOST", "")
    measured = host()
    assert measured
    monkeypatch.setenv("BESTOF_HOST", "the cluster")
    assert host() == "the cluster"
    monkeypatch.delenv("BESTOF_HOST")
    assert host() == measured
