"""The engines: one row each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from bestof.errors import InvalidArgument
from bestof.torch.engines.engine import Engine

_HERE = "bestof.torch.engines"

PLAN = "plan"
# Those that are built alone are built in this order: what takes longest comes last.
ENGINES = (
    Engine(PLAN, "bestof.torch.plan.engine", alone=True),
    Engine("eager", f"{_HERE}.eager"),
    Engine("openvino", f"{_HERE}.openvino", ("openvino",)),
    Engine("onnxruntime", f"{_HERE}.onnxruntime", ("onnx", "onnxscript", "onnxruntime")),
    Engine(
        "zentorch", f"{_HERE}.compiled", ("zentorch",), options={"backend": "zentorch"}, alone=True
    ),
    Engine("torch.compile", f"{_HERE}.compiled", alone=True),
    Engine(
        "torch.compile max-autotune",
        f"{_HERE}.compiled",
        options={"mode": "max-autotune"},
        alone=True,
    ),
)


def find_engines(names: Sequence[str] | Literal["installed"]) -> tuple[Engine, ...]:
    """Return the rows of these names, or of all that are installed, in the table's order.

    Raises InvalidArgument for other names, and for an engine that is not installed.
    """
    if names == "installed":
        return tuple(one for one in ENGINES if not one.missing)
    known = ", ".join(one.name for one in ENGINES)
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise InvalidArgument(
            f"optimize: engines: expected 'installed', or a list of {known}; got {names!r:.80}"
        )
    for name in names:
        found = next((one for one in ENGINES if one.name == name), None)
        if found is None:
            raise InvalidArgument(
                f"optimize: engines: there is no engine {name!r:.80}; the engines are {known}"
            )
        if found.missing:
            raise InvalidArgument(
                f"optimize: engines: {name} needs {', '.join(found.missing)}, which cannot be "
                "imported: install it, or leave the engine out"
            )
    return tuple(one for one in ENGINES if one.name in names)
