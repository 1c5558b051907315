"""Finds addresses of functions that a loaded library contains but does not export.

The symbol table of an ELF file (`.symtab`) also lists local functions, unless it was stripped. The
address in the process is the value in the table plus the address at which the library is loaded.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection
from pathlib import Path

import numpy as np

from bestof.errors import ProfileError

_SYMTAB = 2
_SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)
_FUNCTION = 2
# name, type, flags, address, offset, size, link, info, alignment, size of an entry
_SECTION = struct.Struct("<IIQQQQIIQQ")


def addresses(library: str, wanted: Collection[str]) -> dict[str, int]:
    """Return the addresses, in this process, of the wanted functions that the library has.

    `library` is the end of its file name. Raises ProfileError if the library is not loaded or has
    no symbol table.
    """
    path, base = _loaded(library)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        values = _values(content, frozenset(wanted), str(path))
    return {name: base + value for name, value in values.items()}


def _loaded(library: str) -> tuple[Path, int]:
    """Return the file, and the address of its first byte in memory."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        for text in file:
            span, _, offset, _, _, *name = text.split(maxsplit=5)
            if name and name[0].rstrip().endswith(library) and int(offset, 16) == 0:
                return Path(name[0].rstrip()), int(span.partition("-")[0], 16)
    raise ProfileError(f"the library {library} is not loaded in this process")


def _values(content: mmap.mmap, wanted: frozenset[str], path: str) -> dict[str, int]:
    if content[:6] != b"\x7fELF\x02\x01":
        raise ProfileError(f"{path} is not an ELF file of 64 bits, little-endian")
    (start,) = struct.unpack_from("<Q", content, 0x28)
    size, count = struct.unpack_from("<HH", content, 0x3A)
    sections = [_SECTION.unpack_from(content, start + size * place) for place in range(count)]
    table = next((one for one in sections if one[1] == _SYMTAB), None)
    if table is None:
        raise ProfileError(f"{path} has no symbol table: it was stripped")
    symbols = np.frombuffer(content, _SYMBOL, table[5] // _SYMBOL.itemsize, table[4])
    text_start, text_size = sections[table[6]][4], sections[table[6]][5]
    functions = symbols[((symbols["info"] & 0xF) == _FUNCTION) & (symbols["value"] > 0)]
    names = bytes(content[text_start : text_start + text_size])
    del symbols  # it holds the map open
    # Search for the names instead of reading all 400,000 symbols.
    places = {}
    for name in wanted:
        at = names.find(b"\0" + name.encode() + b"\0")
        if at >= 0:
            places[at + 1] = name
    found = functions[np.isin(functions["name"], list(places))]
    return {places[int(one["name"])]: int(one["value"]) for one in found}
