"""`bestof project`: how fast a profiled step could be, and how to get there."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bestof.cli.compare import read_either
from bestof.cli.options import (
    add_json,
    add_number,
    add_rows,
    check_writable,
    parser_of,
    seconds,
)
from bestof.cli.profile_picture import check_picture, machine_of
from bestof.cli.profile_tables import OTHERS, peak_lines
from bestof.cli.projection_picture import draw_projection
from bestof.errors import InvalidArgument
from bestof.profile import Profile
from bestof.profile.peak import Peak, measure_peak
from bestof.profile.projection.benchdnn import benchdnn_line
from bestof.profile.projection.measured import Kept
from bestof.profile.projection.problem import Problem
from bestof.profile.projection.projection import (
    CEILINGS,
    Projection,
    problems_of,
    project,
)
from bestof.profile.steady import steady_of
from bestof.profile.verbose.line import Line
from bestof.progress import progress_bar
from bestof.view.columns import columns

_EPILOG = """\
PROFILE is what `bestof profile --keep` wrote, or a log of verbose lines.
Every distinct problem of its steady step is run alone, hot (on the same
memory) and cold (on memory that no cache holds). The list at the end names
what pays, by the greater of both times. Ways that read other layouts than
the program has may need conversions, which are not counted.

  bestof project run.json --seconds 120 --resume measured.jsonl
  bestof project run.json --benchdnn"""

# More page faults than these, for each problem, disturb the measurements.
_FAULTS = 100.0


def call(argv: Sequence[str]) -> int:
    """Parse, replay and print."""
    options = make_parser().parse_args(argv)
    if options.seconds <= 0 or options.rows < 1:
        raise InvalidArgument("--seconds: expected a positive number; --rows: expected 1 or more")
    if options.threads is not None and options.threads < 1:
        raise InvalidArgument("--threads: expected 1 or more")
    profile = read_either(options.profile)
    threads = options.threads or _threads_of(profile)
    steady = steady_of(profile)
    if options.benchdnn:
        print("\n".join(_benchdnn(problems_of(steady, threads, None))))
        return 0
    check_picture(options.picture)
    if options.resume is not None:
        check_writable(str(options.resume), "measurements")
    kept = Kept.at(options.resume)
    with progress_bar() as progress:
        progress("measures the peaks", 0, 0)
        peak = measure_peak()
        done = project(steady, threads, peak, options.seconds, kept, progress)
    if options.json:
        print(json.dumps(_content(done, peak), indent=2))
    else:
        print("\n".join(_lines(done, peak, options.rows)))
    if options.picture is not None:
        draw_projection(profile.title, machine_of(profile, peak), done, options.picture)
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of(
        "project",
        description="Show how fast a profiled step could be, and what to do for it.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("profile", metavar="PROFILE", help="a profile, or a log")
    add_number(parser, "--seconds", 60, "time for all problems", seconds)
    add(
        "--resume",
        type=Path,
        metavar="FILE",
        help="keep each measurement, and make those that are missing",
    )
    add("--threads", type=int, metavar="N", help="threads (default: those of the profile)")
    add_rows(parser)
    add("--picture", metavar="FILE", help="draw the ceilings as stacked bars (png, svg or pdf)")
    add(
        "--benchdnn",
        action="store_true",
        help="print command lines of benchdnn with their calls, and stop",
    )
    add_json(parser)
    return parser


def _threads_of(profile: Profile) -> int:
    text = profile.host.get("threads", "")
    return int(text) if text.isdecimal() else len(os.sched_getaffinity(0))


def _benchdnn(problems: Sequence[tuple[Problem, Line]]) -> Iterator[str]:
    for problem, line in problems:
        text = benchdnn_line(line)
        if text is not None:
            yield f"{text}  # {problem.calls} calls a step, {problem.seconds * 1e3:.3f} ms observed"


def _lines(done: Projection, peak: Peak, rows: int) -> Iterator[str]:
    replayed = [one for one in done.problems if one.measured]
    same = sum(one.same_implementation for one in replayed)
    yield (
        f"{len(replayed)} of {len(done.problems)} distinct problems replayed with {done.threads} "
        f"threads, {same} by the implementation of their lines"
    )
    yield (
        f"coverage: {done.coverage:.1%} of the step's {done.wall * 1e3:.2f} ms was replayed; "
        f"{done.seconds / done.wall if done.wall else 0:.1%} is in lines"
    )
    yield from peak_lines(peak)
    yield from _warnings(done)
    yield ""
    yield from columns(
        ("ceiling", "replayed", "hot ms", "cold ms", "efficiency", "step ms", "expected"),
        list(_ceilings(done)),
    )
    yield ""
    yield from columns(
        (
            "primitive",
            "direction",
            "problem",
            "calls",
            "observed ms",
            "alone ms",
            "oneDNN ms",
            "enable ms",
            "best ms",
            "by",
        ),
        [_row(one) for one in replayed[:rows]],
        left=3,
    )
    yield from _missing(done)
    yield from _advice(done, rows)


def _ceilings(done: Projection) -> Iterator[tuple[str, ...]]:
    for name in CEILINGS:
        hot, cold = (done.projected(name, cold) for cold in (False, True))
        yield (
            name,
            f"{done.share(name):.0%}",
            f"{hot * 1e3:.2f}",
            f"{cold * 1e3:.2f}",
            _bracket(done, name, hot, cold),
            _step(done, name, hot, cold),
            f"{done.expected(name) * 1e3:.1f}",
        )
    least = done.roofline()
    if least is not None:
        text, share = f"{least * 1e3:.2f}", f"{done.coverage:.0%}"
        efficiency, step = _bracket(done, "", least, least), _step(done, "", least, least)
        yield ("roofline", share, text, text, efficiency, step, "")


def _bracket(done: Projection, name: str, hot: float, cold: float) -> str:
    replayed = done.replayed(name)
    if replayed <= 0:
        return ""
    low, high = sorted((hot / replayed, cold / replayed))
    return f"{low:.0%} to {high:.0%}"


def _step(done: Projection, name: str, hot: float, cold: float) -> str:
    low, high = sorted(done.wall - done.replayed(name) + one for one in (hot, cold))
    return f"{low * 1e3:.1f} to {high * 1e3:.1f}"


def _row(one: Problem) -> tuple[str, ...]:
    cells = []
    for kinds in CEILINGS.values():
        best = one.ceiling(kinds, cold=True)
        cells.append("" if best is None else f"{one.calls * best.seconds(cold=True) * 1e3:.3f}")
    fastest = one.ceiling(CEILINGS["best of all"], cold=True)
    return (
        *(one.primitive, one.direction, one.problem, str(one.calls), f"{one.seconds * 1e3:.3f}"),
        *cells,
        "" if fastest is None else fastest.name,
    )


def _warnings(done: Projection) -> Iterator[str]:
    if done.disturbance.others > OTHERS:
        yield (
            f"warning: other processes took {done.disturbance.others:.0%} of the processors "
            "meanwhile: the times are higher than the machine's"
        )
    if done.disturbance.faults > _FAULTS * 1000:
        yield f"warning: {done.disturbance.faults:.0f} page faults a measurement: memory was short"


def _missing(done: Projection) -> Iterator[str]:
    missing = [one for one in done.problems if not one.measured]
    if missing:
        yield ""
        yield (
            f"not replayed: {len(missing)} problems, "
            f"{sum(one.seconds for one in missing) * 1e3:.2f} ms a step"
        )
        reasons: dict[str, float] = {}
        for one in missing:
            reasons[one.reason] = reasons.get(one.reason, 0.0) + one.seconds
        for reason, seconds in sorted(reasons.items(), key=lambda pair: -pair[1])[:8]:
            yield f"  {seconds * 1e3:8.2f} ms  {reason}"


def _advice(done: Projection, rows: int) -> Iterator[str]:
    found = done.advice()
    yield ""
    if not found:
        yield "nothing that was tried is faster than what the program ran"
        return
    yield "what to do, the most first:"
    for one, best, saved in found[:rows]:
        modules = ", ".join(one.modules[:3]) or "no module"
        more = f" and {len(one.modules) - 3} more" if len(one.modules) > 3 else ""
        factor = one.seconds / (one.seconds - saved) if one.seconds > saved else 0.0
        yield (
            f"  {saved * 1e3:8.3f} ms a step: {modules}{more}: {one.primitive} {one.direction} "
            f"{factor:.1f} times as fast by {best.name}"
        )


def _content(done: Projection, peak: Peak) -> object:
    return {
        "wall": done.wall,
        "replayed": done.replayed(),
        "coverage": done.coverage,
        "threads": done.threads,
        "peak": asdict(peak),
        "disturbance": asdict(done.disturbance),
        "ceilings": {
            **{
                name: {
                    "hot": done.projected(name, False),
                    "cold": done.projected(name, True),
                    "step": done.expected(name),
                }
                for name in CEILINGS
            },
            "roofline": done.roofline(),
        },
        "problems": [asdict(one) for one in done.problems],
        "convolutions": [asdict(one) for one in done.convolutions],
        "advice": [
            {"modules": one.modules, "problem": one.problem, "by": best.name, "seconds": saved}
            for one, best, saved in done.advice()
        ],
    }
