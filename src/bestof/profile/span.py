"""A span: one part of a profile's time line, with all that is known about it.

There are two kinds. A *line* is a call that oneDNN, MKL or bestof reported. An *operation* is one
of PyTorch's. Its `self_seconds` are the time that no line and no inner operation explains. The self
times of all spans of a thread add up to the explained time. A breakdown sums them by one of the
fields.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Times are seconds. `start` counts from the start of the capture. Unknown text is empty."""

    kind: str  # line, operation
    source: str  # onednn, mkl, bestof, pytorch
    name: str  # the primitive, or the operation
    start: float
    seconds: float
    self_seconds: float
    thread: int = 0
    step: int = -1  # -1: outside of all steps
    phase: str = "other"
    module: str = ""
    module_class: str = ""
    operation: str = ""  # the innermost operation of PyTorch around it
    direction: str = ""
    implementation: str = ""
    dtype: str = ""
    layout: str = ""
    problem: str = ""
    attributes: str = ""
    auxiliary: str = ""
    flops: int = 0
    bytes: int = 0
    text: str = ""  # of a line; of a convolution or an operation without lines, its call
    depth: int = 0  # the number of operations around an operation

    @property
    def end(self) -> float:
        return self.start + self.seconds

    @property
    def call(self) -> tuple[str, ...]:
        """What `key` contains, without the sizes."""
        return (
            *(self.source, self.name, self.module, self.phase, self.operation, self.direction),
            *(self.dtype, self.attributes, self.auxiliary),
        )

    @property
    def key(self) -> tuple[str, ...]:
        """Spans of different steps with equal keys are the same. The key leaves out times and
        the implementation."""
        return (*self.call, self.problem)
