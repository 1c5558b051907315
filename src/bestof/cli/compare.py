"""`bestof compare`: the differences between two profiles, by step or by sample."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bestof.cli.options import add_json, add_rows, parser_of
from bestof.cli.profile_picture import check_picture, draw_comparison, machine_of
from bestof.cli.profile_suspects import suspect_lines
from bestof.cli.profile_tables import key_cell
from bestof.errors import InvalidArgument
from bestof.profile import Profile, from_log, load_profile, read_log
from bestof.profile.breakdown import FIELDS
from bestof.profile.comparison import Pair, compare, scale_of
from bestof.profile.steady import Steady, steady_of
from bestof.profile.suspect import suspects_between, suspects_of
from bestof.view.columns import columns

_DEFAULT = (("phase",), ("primitive", "direction"), ("module",))
_EPILOG = """\
A and B are profiles that `bestof profile --keep` wrote, or logs of verbose
lines. B minus A is shown, the greatest difference first.

  bestof compare before.json after.json
  bestof compare before.json after.json --per sample --by module,direction"""


def call(argv: Sequence[str]) -> int:
    """Parse, read, compare and print."""
    options = make_parser().parse_args(argv)
    fields = tuple(tuple(text.split(",")) for text in options.by) or _DEFAULT
    for name in {name for by in fields for name in by} - FIELDS.keys():
        raise InvalidArgument(f"--by: there is no field {name!r}; take some of {', '.join(FIELDS)}")
    if options.rows < 1:
        raise InvalidArgument("--rows: expected 1 or more")
    check_picture(options.picture)
    profiles = [read_either(path) for path in (options.first, options.second)]
    steadies = [steady_of(one) for one in profiles]
    per = options.per or ("sample" if _batches_differ(steadies) else "step")
    scales = [scale_of(one, per) for one in steadies]
    pairs = {by: compare(steadies[0], steadies[1], by, per) for by in fields}
    if options.json:
        print(json.dumps(_content(profiles, steadies, scales, per, pairs), indent=2))
    else:
        print("\n".join(_lines(profiles, steadies, scales, per, pairs, options.rows)))
    if options.picture is not None:
        # By the files: both profiles may be of one program.
        paths = (options.first, options.second)
        titles = [f"{name}: {Path(one).stem}" for name, one in zip("AB", paths, strict=True)]
        machines = [machine_of(one) for one in profiles]
        draw_comparison(titles, machines, steadies, scales, per, options.picture)
    return 0


def _lines(
    profiles: Sequence[Profile],
    steadies: Sequence[Steady],
    scales: Sequence[float],
    per: str,
    pairs: dict[tuple[str, ...], list[Pair]],
    rows: int,
) -> list[str]:
    lines = [
        *_head(profiles, steadies, scales, per),
        *(line for by, found in pairs.items() for line in ("", *_table(by, found, rows))),
    ]
    lines += suspect_lines("suspects of B beside A", suspects_between(*steadies))
    for name, profile in zip("AB", profiles, strict=True):
        lines += suspect_lines(f"suspects of {name}", suspects_of(profile))
    for name, profile in zip("AB", profiles, strict=True):
        if profile.notes:
            lines += ["", f"notes of {name}:", *(f"  {text}" for text in profile.notes)]
    return lines


def read_either(path: str) -> Profile:
    """Read a profile, or else a log. A profile is JSON."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(1)
    except OSError as error:
        raise InvalidArgument(
            f"cannot read {path!r}: {error.strerror or error}; "
            "`bestof profile --keep FILE.json` writes a profile"
        ) from error
    return load_profile(path) if start == b"{" else from_log(path, read_log(path))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of(
        "compare",
        description="Show what differs between two profiles.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("first", metavar="A", help="a profile, or a log")
    add("second", metavar="B", help="a profile, or a log")
    add(
        "--per",
        choices=("step", "sample"),
        help="normalise (default: by sample where batches differ)",
    )
    add(
        "--by",
        action="append",
        default=[],
        metavar="FIELDS",
        help="compare by FIELD,...; may be repeated",
    )
    add_rows(parser)
    add("--picture", metavar="FILE", help="draw both steps as stacked bars (png, svg or pdf)")
    add_json(parser)
    return parser


def _batches_differ(steadies: Sequence[Steady]) -> bool:
    first, second = (one.samples for one in steadies)
    return bool(first and second and first != second)


def _head(
    profiles: Sequence[Profile], steadies: Sequence[Steady], scales: Sequence[float], per: str
) -> Iterator[str]:
    for name, profile, steady, scale in zip("AB", profiles, steadies, scales, strict=True):
        coverage = "unknown" if steady.coverage is None else f"{steady.coverage:.1%}"
        yield (
            f"{name}: {profile.title}, {steady.wall * scale * 1e3:.2f} ms a {per}, batch "
            f"{steady.samples or 'unknown'}, coverage {coverage}"
        )
    first, second = (steady.wall * scale for steady, scale in zip(steadies, scales, strict=True))
    if first > 0 and second > 0:
        yield f"B takes {second / first:.2f} times as long as A"
    hosts = [one.host for one in profiles]
    for name in hosts[0]:
        if hosts[0][name] != hosts[1].get(name, hosts[0][name]):
            yield f"A and B differ in {name}: {hosts[0][name]} and {hosts[1][name]}"


def _table(by: Sequence[str], rows: Sequence[Pair], limit: int) -> list[str]:
    cells = [
        (
            *(key_cell(name, key, 60) for name, key in zip(by, row.keys, strict=True)),
            f"{row.calls[0]}",
            f"{row.calls[1]}",
            f"{row.seconds[0] * 1e3:.3f}",
            f"{row.seconds[1] * 1e3:.3f}",
            f"{row.difference * 1e3:+.3f}",
            f"only in {row.only}" if row.only else _ratio(row),
        )
        for row in rows[:limit]
    ]
    return columns(
        (*by, "calls A", "calls B", "A ms", "B ms", "B - A", "B / A"), cells, left=len(by)
    )


def _ratio(row: Pair) -> str:
    return f"{row.seconds[1] / row.seconds[0]:.2f}" if row.seconds[0] > 0 else ""


def _content(
    profiles: Sequence[Profile],
    steadies: Sequence[Steady],
    scales: Sequence[float],
    per: str,
    pairs: dict[tuple[str, ...], list[Pair]],
) -> object:
    return {
        "per": per,
        "hosts": [dict(one.host) for one in profiles],
        "seconds": [steady.wall * scale for steady, scale in zip(steadies, scales, strict=True)],
        "comparisons": [
            {
                "by": list(by),
                "rows": [
                    {**asdict(row), "keys": dict(zip(by, row.keys, strict=True)), "only": row.only}
                    for row in rows
                ],
            }
            for by, rows in pairs.items()
        ],
        "suspects": {
            "B beside A": [asdict(one) for one in suspects_between(*steadies)],
            **{
                name: [asdict(one) for one in suspects_of(profile)]
                for name, profile in zip("AB", profiles, strict=True)
            },
        },
    }
