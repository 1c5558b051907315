"""Rules that the import linter cannot check: compiled modules, and what importing bestof
imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import bestof

SOURCE = Path(bestof.__file__).parent
# A compiled module, and the only folder or file that may import it.
OWNERS = {
    "bestof.kernels._native": "kernels/",
    "bestof.selection._hot_path": "selection/hot_path.py",
    "bestof.torch.backends._shim": "torch/backends/shim.py",
}


def imports_of_each_module() -> dict[str, set[str]]:
    """The modules of the package that each module imports, those for type checking and inside
    functions included."""
    paths = {}
    for path in SOURCE.rglob("*.py"):
        parts = ("bestof", *path.relative_to(SOURCE).with_suffix("").parts)
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        found[module] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found[module].update(alias.name for alias in node.names if alias.name in paths)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    if name in paths or name in OWNERS:
                        found[module].update({name} & paths.keys())
                    elif node.module in paths:
                        found[module].add(node.module)
    return found


def test_no_imports_go_in_a_circle() -> None:
    left = imports_of_each_module()
    assert len(left) > 200  # the test has lost its object otherwise
    while free := {module for module, imported in left.items() if not imported & left.keys()}:
        for module in free:
            del left[module]
    # What is left imports one another, or something that does.
    while ends := set(left) - set().union(*left.values()):
        for module in ends:
            del left[module]
    assert not left, f"circles of imports among {sorted(left)}"


def imported_by(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return names


@pytest.mark.parametrize("module", OWNERS)
def test_a_compiled_module_has_one_owner(module: str) -> None:
    importers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if module in imported_by(path)
    }
    assert importers, f"nobody imports {module}: the test has lost its object"
    assert all(importer.startswith(OWNERS[module]) for importer in importers), importers


def test_importing_the_package_imports_neither_torch_nor_numpy_nor_rich() -> None:
    code = (
        "import sys, bestof; print([name for name in ('torch', 'numpy', 'rich', 'sqlite3') if name "
        "in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_checks_a_configuration_without_torch() -> None:
    code = "import sys, bestof.cli.run, bestof.configuration; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_each_test_file_has_a_name_of_its_own() -> None:
    """pytest imports a test file by its bare name, so two of one name stop the whole run. A run of
    some folders does not meet both."""
    names = Counter(path.name for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert len(names) > 200  # the test has lost its object otherwise
    assert [name for name, count in names.items() if count > 1] == []


def test_the_engine_imports_the_standard_library_only() -> None:
    code = """
import importlib, pkgutil, sys
before = set(sys.modules)
import bestof.selection
for module in pkgutil.walk_packages(bestof.selection.__path__, "bestof.selection."):
    importlib.import_module(module.name)
own = {"bestof"}
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(tops - set(sys.stdlib_module_names) - own))
print("bestof.selection.store.sqlite" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "True"]


ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("room", ["", "selection", "torch", "torch/plan", "profile"])
def test_the_guide_shows_every_folder(room: str) -> None:
    names = [path.parent.name for path in (SOURCE / room).glob("*/__init__.py")]
    assert names
    before = "" if room else "src/bestof/"
    assert [name for name in names if f"`{before}{name}/`" not in GUIDE] == []


def test_the_guide_shows_no_folder_that_is_gone() -> None:
    shown = {one for one in re.findall(r"`([a-z_/]+/)`", GUIDE) if not one.startswith("dist")}
    roots = [ROOT / name for name in ("src", "tests", "native", "docs", "benchmarks")]
    folders = [
        f"/{path.relative_to(ROOT)}/" for root in roots for path in [root, *root.rglob("*/")]
    ]
    assert len(shown) > 50
    assert [one for one in shown if not any(each.endswith(f"/{one}") for each in folders)] == []
