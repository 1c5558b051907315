"""A job: what a peer runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from bestof.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Job:
    """A model on a batch of images: inference, or training steps if `train`.

    `size`: rows and columns of the images, None for the model's own. `narrow`: the model's small
    form. `device`: cpu or cuda. Raises InvalidArgument for numbers below 1.
    """

    model: str
    batch: int = 1
    threads: int = 1
    train: bool = False
    size: tuple[int, int] | None = None
    narrow: bool = False
    peer: str = "eager"
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, value in (("batch", self.batch), ("threads", self.threads)):
            if value < 1:
                raise InvalidArgument(f"{name}: expected at least 1; got {value}")

    def by(self, peer: str) -> Job:
        return replace(self, peer=peer)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Job:
        """Return the job that `to_dict` wrote, after a way through JSON."""
        size = content["size"]
        return cls(**{**content, "size": None if size is None else (size[0], size[1])})

    def __str__(self) -> str:
        size = "" if self.size is None else f" {self.size[0]}x{self.size[1]}"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        where = "" if self.device == "cpu" else f", on {self.device}"
        mode = "training" if self.train else "inference"
        return f"{self.model}{size} {mode}, batch {self.batch}, {threads}{where}"
