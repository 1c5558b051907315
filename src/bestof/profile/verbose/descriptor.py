"""A memory descriptor, as in oneDNN's verbose lines.

There are three forms. Since oneDNN 3.6: `src:f32:a:blocked:abcd::f0`. From 1.0 to 3.5:
`src_f32::blocked:abcd:f0`, since 3.0 with a field for strides. An absent tensor has the data type
`undef`.
"""

from __future__ import annotations

from dataclasses import dataclass

# The bytes of one element, by oneDNN's names. Two elements of 4 bits share one byte.
BYTES = {
    **{"f64": 8.0, "f32": 4.0, "s32": 4.0, "bf16": 2.0, "f16": 2.0, "s8": 1.0, "u8": 1.0},
    **{"f8_e5m2": 1.0, "f8_e4m3": 1.0, "e8m0": 1.0, "boolean": 1.0, "s4": 0.5, "u4": 0.5},
    **{"s64": 8.0, "f4_e2m1": 0.5, "f4_e3m0": 0.5},
}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One tensor of a primitive: its role (`src`, `wei`, `bia`, `dst`, ...), data type and layout.

    `properties` holds flags such as `a` (chosen by oneDNN) and `p` (padded). `strides` is empty for
    dense tensors.
    """

    role: str
    dtype: str
    properties: str
    kind: str
    tag: str
    strides: str

    @property
    def absent(self) -> bool:
        """Whether the primitive has no such tensor."""
        return self.dtype == "undef"


def parse_descriptors(text: str) -> tuple[Descriptor, ...]:
    """Parse the field of memory descriptors. Raises ValueError for an unknown form."""
    return tuple(_parse(word) for word in text.split())


def _parse(word: str) -> Descriptor:
    head, *rest = word.split(":")
    if rest and (rest[0] in BYTES or rest[0] == "undef"):
        role, dtype = head, rest.pop(0)
    else:
        role, dtype = _split(head)
    if len(rest) < 2:
        raise ValueError(f"a memory descriptor has four fields or more; got {word!r}")
    properties, kind, tag, strides = [*rest[:3], *[""] * 4][:4]
    if len(rest) > 4:
        strides = rest[3]
    return Descriptor(role, dtype, properties, kind, tag, strides)


def _split(head: str) -> tuple[str, str]:
    """Split `src_f32` into role and type. Both may contain an underscore: `src_iter_f32`,
    `f8_e5m2`."""
    parts = head.split("_")
    for cut in range(1, len(parts)):
        dtype = "_".join(parts[cut:])
        if dtype in BYTES or dtype == "undef":
            return "_".join(parts[:cut]), dtype
    raise ValueError(f"a memory descriptor begins with a role and a data type; got {head!r}")
