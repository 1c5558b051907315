"""A split: the number of ranks, the threads of a rank, and the cores of each rank."""

from __future__ import annotations

from dataclasses import dataclass

from bestof.scale.cores import Cores, parse_processors, text_of


@dataclass(frozen=True, slots=True)
class Split:
    """How a training uses the machine.

    ranks: one tuple of processors for each rank; a rank has as many threads.
    batch: the samples of a rank's step; None if the script divides its batch itself.
    """

    ranks: tuple[tuple[int, ...], ...]
    batch: int | None

    @property
    def threads(self) -> int:
        """The threads of a rank."""
        return len(self.ranks[0])

    @property
    def name(self) -> str:
        """The split as a table shows it, such as 2x8."""
        return f"{len(self.ranks)}x{self.threads}"

    def pins(self) -> str:
        """Return the processors of all ranks, as `bestof pinned` takes them."""
        return "/".join(text_of(one) for one in self.ranks)


def parse_pins(text: str) -> tuple[tuple[int, ...], ...]:
    """Return what `pins` was made from. Raises InvalidArgument."""
    return tuple(parse_processors(one) for one in text.split("/"))


def splits(cores: Cores, batch: int | None) -> list[Split]:
    """Return the splits to try: powers of two, and what fills a node or the machine.

    batch: the samples of a step of all ranks together. A number of ranks that does not divide it is
    left out.
    """
    largest = min(cores.most, max(len(node) for node in cores.nodes))
    found = []
    for threads in _sizes(largest):
        slots = sum(len(node) // threads for node in cores.nodes)
        for ranks in _sizes(min(slots, cores.most // threads)):
            if batch is None or batch % ranks == 0:
                pins = placed(cores, ranks, threads)
                found.append(Split(pins, None if batch is None else batch // ranks))
    return found


def placed(cores: Cores, ranks: int, threads: int) -> tuple[tuple[int, ...], ...]:
    """Return the processors of each rank. Nodes take turns, so that all memory is used.

    No rank has processors of two nodes.
    """
    counts = [0] * len(cores.nodes)
    node = 0
    while sum(counts) < ranks:
        if (counts[node] + 1) * threads <= len(cores.nodes[node]):
            counts[node] += 1
        node = (node + 1) % len(counts)
    return tuple(
        held[number * threads : (number + 1) * threads]
        for held, count in zip(cores.nodes, counts, strict=True)
        for number in range(count)
    )


def _sizes(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, and `most` itself."""
    return sorted(
        {2**power for power in range(most.bit_length()) if 2**power <= most}
        | ({most} if most else set())
    )
