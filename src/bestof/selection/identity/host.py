"""Describe the host in one line of text: what measured times depend on apart from the problem."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

# The levels of the x86-64 psABI, by the names that /proc/cpuinfo uses.
_X86_LEVELS = (
    ("x86-64-v2", {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}),
    ("x86-64-v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}),
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
)

# Extensions beyond these levels, for which kernels of linear algebra are compiled.
_EXTENSIONS = (
    *(
        "avx512f",
        "avx_vnni",
        "avx_vnni_int8",
        "avx_ne_convert",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "avx10",
    ),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "asimdhp", "asimddp", "asimdfhm", "i8mm", "bf16"),
    *("sve", "sve2", "svei8mm", "svebf16", "sme", "sme2"),
)


def host() -> str:
    """Return the fingerprint of this machine.

    It names the processor, the instruction set, the CPUs of this process, and Python's version. If
    BESTOF_HOST is set and not empty, its text is the fingerprint; machines that share evidence use
    the same text. It is computed once per process. A later change of the CPU affinity is not
    noticed.
    """
    return os.environ.get("BESTOF_HOST") or _measured()


def machine() -> str:
    """Return the processor and the number of its CPUs, for titles of tables and pictures."""
    parts = host().split("; ")
    return f"{parts[0]}, {parts[2]}" if len(parts) > 2 else parts[0]


@cache
def _measured() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            fields = parse_cpuinfo(file)
    except OSError:
        fields = {"model name": _processor_name()}
    cpus = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return fingerprint(fields, cpus)


def parse_cpuinfo(lines: Iterable[str]) -> dict[str, str]:
    """Return the fields of the first processor in the lines of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip()] = value.strip()
        elif fields:
            # A blank line ends the first processor. Reading the rest takes milliseconds on a large
            # machine.
            break
    return fields


def fingerprint(fields: Mapping[str, str], cpus: int) -> str:
    """Return the fingerprint for the fields of a processor and a number of CPUs.

    The fields have the names of /proc/cpuinfo.
    """
    name = (
        fields.get("model name")
        or fields.get("Hardware")
        or platform.processor()
        or platform.machine()
    )
    numbers = [fields.get(key, "") for key in ("cpu family", "model", "stepping")]
    if not any(numbers):
        numbers = [
            fields.get(f"CPU {key}", "") for key in ("implementer", "part", "variant", "revision")
        ]
    model = "/".join(number for number in numbers if number)
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    level = platform.machine() or "unknown"
    needed: set[str] = set()
    for candidate, more in _X86_LEVELS:
        needed |= more
        if needed <= flags:
            level = candidate
    extensions = [
        flag
        for flag in _EXTENSIONS
        if flag in flags and not (flag == "avx512f" and level == "x86-64-v4")
    ]
    python = f"python {sys.version_info.major}.{sys.version_info.minor}"
    parts = (f"{name} {model}".strip(), " ".join([level, *extensions]), f"{cpus} cpus", python)
    return "; ".join(" ".join(part.split()) for part in parts)


def _processor_name() -> str:
    if sys.platform == "darwin":
        try:
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(
                command, capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return platform.processor() or platform.machine()
