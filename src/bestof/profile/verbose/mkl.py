"""Parses the verbose lines of MKL.

PyTorch computes float32 matrix products and vector functions by MKL, not by oneDNN.
"""

from __future__ import annotations

import re

from bestof.profile.verbose.line import Line
from bestof.profile.verbose.onednn import MOST_MS

PREFIX = "MKL_VERBOSE"

_CALL = re.compile(
    r"MKL_VERBOSE (?P<name>\w+)\((?P<arguments>[^)]*)\) "
    r"(?P<time>[\d.,]+)(?P<unit>[num]?s\b|[num]\Z)(?P<rest>.*)"  # a cut line may end in the unit
)
_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "s": 1.0}
_HEADERS = (f"{PREFIX} oneMKL", f"{PREFIX} Intel(R)")
# The data type by the first letter of a BLAS or LAPACK name.
_DTYPES = {"S": "f32", "D": "f64", "C": "c64", "Z": "c128"}
_GEMM = re.compile(r"([SDCZ])GEMM\Z")
_BATCH = re.compile(r"([SDCZ])GEMM_BATCH")


def is_mkl(text: str) -> bool:
    """Return whether MKL wrote the line."""
    return text.startswith(PREFIX)


def is_header(text: str) -> bool:
    """Return whether the line, or what is left of a cut one, describes the library, not a call."""
    return text.startswith(_HEADERS) or any(one.startswith(text.rstrip()) for one in _HEADERS)


def parse(text: str) -> Line:
    """Parse the line of a call. Raises ValueError for another line."""
    found = _CALL.match(text)
    if found is None:
        raise ValueError("not a call of MKL")
    name, arguments = found["name"].upper(), found["arguments"].split(",")
    # A program that sets a locale, such as German, has MKL write a decimal comma.
    seconds = float(found["time"].replace(",", ".")) * _UNITS[found["unit"][0]]
    if seconds > MOST_MS / 1e3:
        raise ValueError(f"the time is impossible: {found['time']!r}")
    return Line(
        source="mkl",
        primitive="matmul" if _GEMM.match(name) or _BATCH.match(name) else name.lower(),
        implementation=f"mkl:{name.lower()}",
        direction="",
        descriptors=(),
        attributes="",
        auxiliary="".join(arguments[:2]) if _GEMM.match(name) else "",
        problem=_problem(name, arguments),
        seconds=seconds,
        text=text.rstrip("\n"),
    )


def dtype_of(implementation: str) -> str:
    """Return the data type in the name of a call (`mkl:sgemm`: f32), or an empty text."""
    letter = implementation.removeprefix("mkl:")[:1].upper()
    return _DTYPES.get(letter, "")


def _problem(name: str, arguments: list[str]) -> str:
    """Return the sizes of a matrix product as text `m10n4k4608`.

    For other calls, return every argument that is not an address.
    """
    if _GEMM.match(name) and len(arguments) >= 5:
        m, n, k = arguments[2:5]
        return f"m{m}n{n}k{k}"
    return ",".join(one for one in arguments if not one.startswith("0x"))
