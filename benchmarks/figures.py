"""Lists the tables and pictures of the pages with their versions, the oldest first.

python benchmarks/figures.py

The age of a figure is the number of commits that have changed the code it speaks of since the
figure was written down. The exit status is 1 if a table or a picture has no line of its commit,
date and processor, or one that names an unknown commit or processor. docs/results/machines.md
explains the line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The code that a page speaks of. Any other page speaks of `src` and `native`.
CODE = {
    "docs/results/attention.md": ("native/attention", "src/bestof/torch/ops/attention"),
    "docs/results/convolution.md": ("native/conv", "src/bestof/torch/ops/convolution"),
    "docs/results/engine.md": ("native/hot_path", "src/bestof/selection"),
    "docs/results/estimates.md": ("native/conv", "src/bestof/torch/ops/convolution"),
    "docs/results/focal_loss.md": ("native/loss", "native/optim", "native/conv"),
    "docs/results/kernels.md": ("native/conv", "native/simd", "native/transpose"),
    "docs/results/policies.md": ("src/bestof/selection/policies",),
    "docs/results/products.md": ("native/gemm",),
    "docs/results/profile.md": ("src/bestof/profile",),
    "docs/results/whole_process.md": ("src/bestof/cli", "src/bestof/torch/process"),
    "docs/plan.md": ("native", "src/bestof/torch/plan"),
    "docs/serving.md": ("src/bestof/torch/process",),
}
_VERSION = re.compile(r"commit ([0-9a-f]{8}), (\d{4}-\d\d-\d\d), ([\w ]+)", re.IGNORECASE)
_RULE = re.compile(r"\|[-| :]+\|")
_PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\.png\)")
_NUMBER = re.compile(r"[*~]*[-+]?\d")
# A column of counts or defaults makes no table of figures; the tables of figures have more.
_SHARE_OF_NUMBERS = 0.25
# Tables of numbers that nothing measured, and of links to figures.
_GIVEN = {
    "| problem | open passes |",
    "| name | processor | peak of one thread | of two |",
    "| claim | measured here | does it hold? | in `build/results` |",
}


@dataclass(frozen=True)
class Figure:
    """A table or a picture of a page, and its version. An empty commit means that it has none."""

    page: str
    line: int
    what: str
    commit: str = ""
    date: str = ""
    processor: str = ""


def figures_of(page: str, text: str) -> list[Figure]:
    """Return the tables of measured figures and the pictures of a page.

    The version of a figure is the next one of its section; after the last one, the last one.
    """
    found: list[Figure] = []
    for first, section in _sections(text.splitlines()):
        versions = [(at, one) for at, line in enumerate(section) for one in _VERSION.findall(line)]
        for at, what in _named(page, section):
            after = [one for place, one in versions if place >= at]
            version = (after or [one for _, one in versions[-1:]] or [("", "", "")])[0]
            found.append(Figure(page, first + at + 1, what, *version))
    return found


def _sections(lines: list[str]) -> list[tuple[int, list[str]]]:
    """Return the sections with the numbers of their first lines. Fenced blocks are left empty."""
    sections: list[tuple[int, list[str]]] = [(0, [])]
    fenced = False
    for number, line in enumerate(lines):
        fence = line.lstrip().startswith("```")
        if line.startswith("#") and not fenced:
            sections.append((number, []))
        sections[-1][1].append("" if fence or fenced else line)
        fenced = fenced != fence
    return sections


def _named(page: str, section: list[str]) -> list[tuple[int, str]]:
    """Return where tables and pictures of a section begin, and what to call them."""
    named = []
    for at, line in enumerate(section):
        if _PICTURE.search(line):
            named.append((at, line))
        elif _RULE.fullmatch(line) and section[at - 1] not in _GIVEN:
            rows = section[at + 1 :]
            rows = rows[: next((n for n, row in enumerate(rows) if row[:1] != "|"), len(rows))]
            cells = [cell.strip() for row in rows for cell in row.strip("|").split("|")[1:]]
            numbers = sum(bool(_NUMBER.match(cell)) for cell in cells)
            if page.startswith("docs/results/") or numbers >= _SHARE_OF_NUMBERS * len(cells):
                named.append((at - 1, section[at - 1]))
    return named


def processors(root: Path) -> set[str]:
    """Return the names of processors that the page of machines explains."""
    page = (root / "docs" / "results" / "machines.md").read_text(encoding="utf-8")
    return {row[0].strip() for row in re.findall(r"^\| ([^|]+)(\|.*){3}\|$", page, re.MULTILINE)}


def read(root: Path) -> list[Figure]:
    """Return the figures of README and of the pages."""
    pages = [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]
    names = [str(page.relative_to(root)) for page in pages]
    return [
        one
        for name, page in zip(names, pages, strict=True)
        for one in figures_of(name, page.read_text(encoding="utf-8"))
    ]


def faults(found: list[Figure], known: set[str]) -> list[str]:
    """Return what is wrong with the versions of figures."""
    said = []
    for one in found:
        where = f"{one.page}:{one.line}: {one.what}"
        if not one.commit:
            said.append(f"{where}: has no line 'Commit HASH, DATE, PROCESSOR.'")
        elif unknown := set(one.processor.split(" and ")) - known:
            said.append(f"{where}: docs/results/machines.md does not explain {unknown.pop()!r}")
    return said


def age(root: Path, figure: Figure) -> int | None:
    """Return how many commits have changed the figure's code since. None: the commit is unknown."""
    code = CODE.get(figure.page, ("src", "native"))
    asked = ["git", "rev-list", "--count", f"{figure.commit}..HEAD", "--", *code]
    done = subprocess.run(asked, cwd=root, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else None


def main(root: Path = ROOT) -> int:
    found = read(root)
    wrong = faults(found, processors(root))
    ages = {one: age(root, one) for one in found if one.commit}
    for one in sorted(ages, key=lambda figure: -(ages[figure] or 0)):
        if ages[one] is None:
            wrong.append(f"{one.page}:{one.line}: {one.what}: git knows no commit {one.commit}")
            continue
        place = f"{one.page}:{one.line}"
        print(
            f"{ages[one]:5} {one.commit} {one.date} {one.processor:<21.21} {place:<34} {one.what}"
        )
    for fault in wrong:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
