"""One verbose line of oneDNN, MKL or bestof, which reports one call.

A line is parsed once from text, and never changed. It says what ran (primitive, implementation,
direction), on which problem (descriptors, attributes, problem text), and for how long. Some
libraries also print when the call began. Breakdowns count the work of lines, and projections replay
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from bestof.profile.verbose.descriptor import Descriptor


@dataclass(frozen=True, slots=True)
class Line:
    """One executed call. `began` is seconds since the epoch, or None without a timestamp."""

    source: str  # onednn, mkl, bestof
    primitive: str
    implementation: str
    direction: str
    descriptors: tuple[Descriptor, ...]
    attributes: str
    auxiliary: str
    problem: str
    seconds: float
    began: float | None = None
    engine: str = "cpu"
    text: str = ""

    def descriptor(self, role: str) -> Descriptor | None:
        """Return the descriptor of a role, or None if the primitive has no such tensor."""
        return next((one for one in self.descriptors if one.role == role and not one.absent), None)

    @property
    def dtype(self) -> str:
        """The data types of its tensors, each once: `f32`, or `u8:s8:s32`."""
        present = (one.dtype for one in self.descriptors if not one.absent and one.role != "bia")
        return ":".join(dict.fromkeys(present))

    @property
    def layout(self) -> str:
        """The layouts of source, weights and destination: `abcd Acdb16a aBcd16b`."""
        return " ".join(
            one.tag or one.kind for one in self.descriptors if not one.absent and one.role != "bia"
        )

    @property
    def key(self) -> tuple[str, ...]:
        """Two lines with equal keys are the same call on the same problem.

        The key leaves out times and implementations.
        """
        tensors = " ".join(
            f"{one.role}:{one.dtype}:{one.tag}:{one.strides}" for one in self.descriptors
        )
        return (
            *(self.source, self.primitive, self.direction, tensors),
            *(self.attributes, self.auxiliary, self.problem),
        )
