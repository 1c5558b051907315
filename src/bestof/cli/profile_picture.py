"""The picture of a profile: a bar for each phase and for each of the slowest modules, stacked by primitive."""

from __future__ import annotations

from pathlib import Path

from bestof.profile import Profile
from bestof.profile.span import Span
from bestof.profile.steady import steady_of
from bestof.view.stacked_bars import Bar, draw_stacked_bars

# Modules beyond these are not drawn.
_MODULES = 20


def draw_profile(profile: Profile, path: str) -> None:
    """Draw the phases and the slowest modules of the steady step to `path`, in the format of its ending."""
    steady = steady_of(profile)
    phases: dict[str, dict[str, float]] = {}
    modules: dict[str, dict[str, float]] = {}
    for span in steady.spans:
        _add(phases.setdefault(span.phase, {}), span)
        if span.module or span.module_class:
            _add(modules.setdefault(span.module or f"({span.module_class})", {}), span)
    slowest = sorted(modules, key=lambda name: -sum(modules[name].values()))[:_MODULES]
    bars = [
        *(Bar(f"phase {name}", parts) for name, parts in phases.items()),
        *(Bar(name, modules[name]) for name in slowest),
    ]
    coverage = "" if steady.coverage is None else f", coverage {steady.coverage:.1%}"
    draw_stacked_bars(
        bars, f"{profile.title}: {steady.wall * 1e3:.1f} ms a step{coverage}", Path(path)
    )


def kind_of(span: Span) -> str:
    """Return the kind that a span is drawn as: its primitive and direction, or its operation."""
    direction = span.direction.removesuffix("_training").removesuffix("_inference")
    return f"{span.name} {direction}" if span.kind == "line" and direction else span.name


def _add(parts: dict[str, float], span: Span) -> None:
    kind = kind_of(span)
    parts[kind] = parts.get(kind, 0.0) + span.self_seconds
