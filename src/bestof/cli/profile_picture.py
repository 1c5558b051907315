"""Draw profiles and comparisons as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from bestof.cli.options import check_writable
from bestof.distribution import install
from bestof.errors import InvalidArgument
from bestof.profile import Profile
from bestof.profile.peak import Peak
from bestof.profile.span import Span
from bestof.profile.steady import Steady, steady_of
from bestof.selection.duration import duration
from bestof.view.stacked_bars import Bar, draw_stacked_bars

_FORMATS = (".png", ".svg", ".pdf")

# The most modules in a picture.
_MODULES = 20


def draw_profile(profile: Profile, path: str) -> None:
    """Draw the phases and the slowest modules of the steady step.

    The ending of `path` gives the format.
    """
    steady = steady_of(profile)
    phases: dict[str, dict[str, float]] = {}
    modules: dict[str, dict[str, float]] = {}
    for span in steady.all_spans:
        _add(phases.setdefault(span.phase, {}), span)
        if span.module or span.module_class:
            _add(modules.setdefault(span.module or f"({span.module_class})", {}), span)
    slowest = sorted(modules, key=lambda name: -sum(modules[name].values()))[:_MODULES]
    panels = [
        [Bar(name, parts) for name, parts in phases.items()],
        [Bar(name, modules[name]) for name in slowest],
    ]
    coverage = "" if steady.coverage is None else f", coverage {steady.coverage:.1%}"
    each = " a step" if steady.steps else ""
    title = f"{Path(profile.title).name}: {duration(steady.wall)}{each}{coverage}"
    draw_stacked_bars(panels, f"{title}\n{machine_of(profile)}", Path(path), unit=f"ms{each}")


def machine_of(profile: Profile, peak: Peak | None = None) -> str:
    """Return the processor of a profile, its threads and the peak, as far as they are known."""
    peak = peak or profile.peak
    threads = profile.host.get("threads")
    return ", ".join(
        (
            profile.host.get("processor") or "processor not noted",
            *([f"threads: {threads}"] if threads else []),
            *([f"peak {peak.flops / 1e9:.0f} GFLOP/s"] if peak else []),
        )
    )


def draw_comparison(
    titles: Sequence[str],
    machines: Sequence[str],
    steadies: Sequence[Steady],
    scales: Sequence[float],
    per: str,
    path: str,
) -> None:
    """Draw a bar for each profile and phase, stacked by primitive, below the machines' names."""
    bars = []
    for title, steady, scale in zip(titles, steadies, scales, strict=True):
        whole: dict[str, float] = {}
        phases: dict[str, dict[str, float]] = {}
        for span in steady.all_spans:
            _add(whole, span, scale)
            _add(phases.setdefault(span.phase, {}), span, scale)
        bars.append(Bar(title, whole))
        bars += [Bar(f"{title[:1]} {name}", parts) for name, parts in phases.items()]
    title = "\n".join(["where the time goes", *dict.fromkeys(machines)])
    draw_stacked_bars([bars], title, Path(path), unit=f"ms a {per}")


def check_picture(path: str | None) -> None:
    """Raise InvalidArgument if the picture cannot be drawn. Call it before anything is measured."""
    if path is None:
        return
    if Path(path).suffix.lower() not in _FORMATS:
        raise InvalidArgument(
            f"--picture: expected a file that ends in {', '.join(_FORMATS)}; got {path!r}"
        )
    if find_spec("matplotlib") is None:
        raise InvalidArgument(f"--picture: matplotlib is missing; {install('plot')}")
    check_writable(path, "a picture")


def kind_of(span: Span) -> str:
    """Return the kind by which a span is coloured: its primitive and direction, or its
    operation."""
    direction = span.direction.removesuffix("_training").removesuffix("_inference")
    return f"{span.name} {direction}" if span.kind == "line" and direction else span.name


def _add(parts: dict[str, float], span: Span, scale: float = 1.0) -> None:
    kind = kind_of(span)
    parts[kind] = parts.get(kind, 0.0) + span.self_seconds * scale
