"""The notation of a convolution: `i3x64x64,k128x7x7,b64,s1,p0,d1,g1`."""

from __future__ import annotations

import re

from bestof.errors import InvalidArgument

EXPECTED = (
    "iCHANNELSxHEIGHTxWIDTH,kFILTERSxHEIGHTxWIDTH[,bBATCH][,sSTRIDE][,pPADDING][,dDILATION]"
    "[,gGROUPS], where stride, padding and dilation are one number or HEIGHTxWIDTH, "
    "as in 'i3x64x64,k128x7x7,b64,s2,p3'"
)
_FIELD = re.compile(r"([ikbspdg])(\d+(?:x\d+)*)")
_COUNTS = {"i": (3,), "k": (3,), "b": (1,), "s": (1, 2), "p": (1, 2), "d": (1, 2), "g": (1,)}
_DEFAULTS = {"b": (1,), "s": (1, 1), "p": (0, 0), "d": (1, 1), "g": (1,)}


def pair(values: tuple[int, int]) -> str:
    """Return one number if both axes agree, else `AxB`."""
    height, width = values
    return str(height) if height == width else f"{height}x{width}"


def parse_fields(text: str) -> dict[str, tuple[int, ...]]:
    """Return the numbers of each letter with defaults; `s`, `p` and `d` as pairs.

    Raises InvalidArgument where the text does not follow `EXPECTED`; whether the numbers describe a
    convolution that exists is not judged here.
    """
    fields: dict[str, tuple[int, ...]] = {}
    for part in text.replace(" ", "").split(","):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise InvalidArgument(
                f"convolution {text!r}: cannot read {part!r}; expected {EXPECTED}"
            )
        letter = match[1]
        values = tuple(int(number) for number in match[2].split("x"))
        if letter in fields:
            raise InvalidArgument(
                f"convolution {text!r}: {letter!r} is given twice; expected {EXPECTED}"
            )
        if len(values) not in _COUNTS[letter]:
            counts = " or ".join(str(count) for count in _COUNTS[letter])
            raise InvalidArgument(
                f"convolution {text!r}: {part!r} has {len(values)} numbers in place of {counts}; "
                f"expected {EXPECTED}"
            )
        if 0 in values and letter != "p":
            raise InvalidArgument(
                f"convolution {text!r}: {part!r} holds a zero; expected {EXPECTED}"
            )
        fields[letter] = values * 2 if letter in "spd" and len(values) == 1 else values
    for letter in "ik":
        if letter not in fields:
            raise InvalidArgument(
                f"convolution {text!r}: {letter!r} is missing; expected {EXPECTED}"
            )
    return {**_DEFAULTS, **fields}
