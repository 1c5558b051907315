"""An engine: one way to run a whole model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

from bestof.distribution import VERSION

_OWN = f"bestof {VERSION}"


@dataclass(frozen=True, slots=True)
class Engine:
    """One row of the table of engines.

    `module` has `build(flat, tensors, threads, accuracy, **options)`, which returns a `Call` for
    inputs like `tensors`; see `build.py`. It is imported where the engine is built. An engine is
    missing if one of the modules in `needs` cannot be imported. `alone`: it is built while no other
    engine is, because it times what it chooses from, or keeps all cores busy.
    """

    name: str
    module: str
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """The modules in `needs` that cannot be imported here."""
        return tuple(name for name in self.needs if find_spec(name) is None)

    @property
    def version(self) -> str:
        """The versions that the speed of the engine depends on. Evidence for others is not used."""
        return ", ".join([f"{one} {_version(one)}" for one in ("torch", *self.needs)] + [_OWN])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a distribution of another name, or none
        return str(getattr(import_module(package), "__version__", "unknown"))
