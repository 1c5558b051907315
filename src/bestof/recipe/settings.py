"""What a recipe can set. A parser and the command line need this without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from bestof.accuracy import DEFAULT_ACCURACY, Accuracy, parse_accuracy
from bestof.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a recipe. Without arguments, the script runs as under `python`.

    kernels: choose convolutions and poolings. products, attention: choose these too; both
        need kernels. accuracy: of what is chosen.
    keep_freed: keep freed memory in the process.
    channels_last: convert the convolutions of each model.
    threads: the computing threads; None leaves them.
    workers: the workers of a `DataLoader` with a map-style dataset and none; None leaves them.
    fused_optimizer: use PyTorch's fused SGD, Adam and AdamW where the script leaves the choice.
    """

    kernels: bool = False
    products: bool = False
    attention: bool = False
    accuracy: Accuracy = DEFAULT_ACCURACY
    keep_freed: bool = False
    channels_last: bool = False
    threads: int | None = None
    workers: int | None = None
    fused_optimizer: bool = False

    def changes(self) -> dict[str, Any]:
        """Return the settings that differ from those of an untuned script."""
        return self.differences(Settings())

    def differences(self, other: Settings) -> dict[str, Any]:
        """Return the settings that differ from those of `other`."""
        others = asdict(other)
        return {name: value for name, value in asdict(self).items() if value != others[name]}


def parse_settings(values: object, where: str) -> Settings:
    """Return settings from what `changes` returned. Raises InvalidArgument."""
    if not isinstance(values, Mapping):
        raise InvalidArgument(f"{where}: expected a dict; got {type(values).__name__}")
    known = {field.name: field.default for field in fields(Settings)}
    for name, value in values.items():
        if name not in known:
            raise InvalidArgument(
                f"{where}: unknown setting {name!r}; known settings: {', '.join(known)}"
            )
        if name == "accuracy":
            parse_accuracy(value, f"{where}: accuracy")
        elif known[name] is None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidArgument(
                    f"{where}: {name}: expected a whole number, 1 or more; got {value!r}"
                )
        elif not isinstance(value, bool):
            raise InvalidArgument(f"{where}: {name}: expected true or false; got {value!r}")
    settings = Settings(**values)
    if (settings.products or settings.attention) and not settings.kernels:
        raise InvalidArgument(f"{where}: products and attention need kernels: true")
    return settings
