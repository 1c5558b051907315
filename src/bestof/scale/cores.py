"""Reads which cores the process may use, and to which NUMA node each belongs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bestof.errors import InvalidArgument
from bestof.processors import Processors


@dataclass(frozen=True, slots=True)
class Cores:
    """The usable cores.

    nodes: for each NUMA node, one processor of each of its cores. Other processors of the same core
        (hyper-threads) are left out: they share its arithmetic units.
    most: how many threads can run at once; a quota may allow fewer than there are cores.
    """

    nodes: tuple[tuple[int, ...], ...]
    most: int


def cores(limits: Processors, root: Path = Path("/")) -> Cores:
    """Return the cores that `limits` allow. `root` is the folder that contains /sys."""
    taken: set[int] = set()
    first = []
    for processor in sorted(limits.allowed):
        if processor not in taken:
            first.append(processor)
            taken |= _siblings(processor, root)
    nodes = []
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=_number):
        held = _numbers(folder / "cpulist")
        nodes.append(tuple(one for one in first if one in held))
    known = {one for node in nodes for one in node}
    # A system without NUMA has no folders of nodes.
    nodes.append(tuple(one for one in first if one not in known))
    return Cores(tuple(node for node in nodes if node), min(limits.usable, len(first)))


def text_of(processors: tuple[int, ...]) -> str:
    """Return the processors as the kernel writes them, such as 0-3,8."""
    parts: list[list[int]] = []
    for one in sorted(processors):
        if parts and parts[-1][-1] == one - 1:
            parts[-1].append(one)
        else:
            parts.append([one])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def parse_processors(text: str) -> tuple[int, ...]:
    """Return the processors of a text such as 0-3,8. Raises InvalidArgument for other texts."""
    found: set[int] = set()
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InvalidArgument(f"expected processors such as 0-3,8; got {text!r}")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def _siblings(processor: int, root: Path) -> set[int]:
    folder = root / f"sys/devices/system/cpu/cpu{processor}/topology"
    return {processor} | _numbers(folder / "thread_siblings_list")


def _numbers(path: Path) -> set[int]:
    try:
        return set(parse_processors(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # absent, or empty as for a node that only has memory
        return set()


def _number(folder: Path) -> int:
    return int(re.sub(r"\D", "", folder.name) or 0)
