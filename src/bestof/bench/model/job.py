"""A job: what a peer runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from bestof.errors import InvalidArgument

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Job:
    """A model on a batch of images: inference, or training steps if `train`.

    `size`: rows and columns of the images, None for the model's own. `narrow`: the model's small
    form. `device`: cpu or cuda. `dtype`: of the weights and the images; only inference runs in
    bfloat16. `beside`: the number of busy processes while it is timed. `plans`: how many processes
    of each peer of bestof take turns, each with choices of its own. Raises InvalidArgument for
    numbers that are too small, and for other types.
    """

    model: str
    batch: int = 1
    threads: int = 1
    train: bool = False
    size: tuple[int, int] | None = None
    narrow: bool = False
    peer: str = "eager"
    device: str = "cpu"
    dtype: str = "float32"
    beside: int = 0
    plans: int = 1

    def __post_init__(self) -> None:
        counts = (("batch", self.batch), ("threads", self.threads), ("plans", self.plans))
        for name, value in counts:
            if value < 1:
                raise InvalidArgument(f"{name}: expected at least 1; got {value}")
        if self.beside < 0:
            raise InvalidArgument(f"beside: expected at least 0; got {self.beside}")
        if self.dtype not in DTYPES:
            raise InvalidArgument(f"dtype: expected one of {', '.join(DTYPES)}; got {self.dtype!r}")
        if self.train and self.dtype != "float32":
            raise InvalidArgument(
                f"dtype: training steps are measured in float32; got {self.dtype}"
            )

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
        mode += "" if self.dtype == "float32" else f" in {self.dtype}"
        busy = "1 busy process" if self.beside == 1 else f"{self.beside} busy processes"
        where += f", beside {busy}" if self.beside else ""
        where += f", {self.plans} processes" if self.plans > 1 else ""
        return f"{self.model}{size} {mode}, batch {self.batch}, {threads}{where}"
