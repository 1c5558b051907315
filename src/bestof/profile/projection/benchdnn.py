"""Makes command lines of benchdnn, oneDNN's own benchmark, for the problems of a profile."""

from __future__ import annotations

from bestof.profile.verbose.line import Line

_DIRECTIONS = {
    "forward_training": "FWD_D",
    "forward_inference": "FWD_I",
    "backward_data": "BWD_D",
    "backward_weights": "BWD_W",
}
_BIASED = {"FWD_D": "FWD_B", "BWD_W": "BWD_WB"}


def benchdnn_line(line: Line) -> str | None:
    """Return the command line for a line of oneDNN, or None for an unsupported primitive."""
    make = {"convolution": _convolution, "reorder": _reorder, "matmul": _matmul}.get(line.primitive)
    return None if make is None or line.source != "onednn" else make(line)


def _tag(line: Line, role: str) -> str:
    found = line.descriptor(role)
    return "any" if found is None or not found.tag else found.tag


def _dtypes(line: Line, *roles: str) -> str:
    found = [line.descriptor(role) for role in roles]
    return ":".join("undef" if one is None else one.dtype for one in found)


def _convolution(line: Line) -> str:
    direction = _DIRECTIONS.get(line.direction, "FWD_D")
    if line.descriptor("bia") is not None:
        direction = _BIASED.get(direction, direction)
    tags = " ".join(
        f"--{name}tag={_tag(line, role)}"
        for name, role in (("s", "src"), ("w", "wei"), ("d", "dst"))
    )
    return (
        f"benchdnn --conv --mode=P --dir={direction} --dt={_dtypes(line, 'src', 'wei', 'dst')} "
        f"{tags} {line.problem.replace('_', '')}"
    )


def _reorder(line: Line) -> str:
    return (
        f"benchdnn --reorder --mode=P --sdt={_dtypes(line, 'src')} --ddt={_dtypes(line, 'dst')} "
        f"--stag={_tag(line, 'src')} --dtag={_tag(line, 'dst')} {line.problem}"
    )


def _matmul(line: Line) -> str:
    problem = ":".join(line.problem.split(":")[:2])
    return (
        f"benchdnn --matmul --mode=P --dt={_dtypes(line, 'src', 'wei', 'dst')} "
        f"--stag={_tag(line, 'src')} --wtag={_tag(line, 'wei')} --dtag={_tag(line, 'dst')} "
        f"{problem}"
    )
