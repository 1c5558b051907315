"""Runs what a release of PyTorch can change on other releases; exits with 1 if a test fails.

python tests/matrix/run.py --wheel dist/bestof_select-*.whl 2.13.0 2.14.1 2.99.0=2.13.0

Each release gets a virtual environment of its own below build/torch-matrix, which is kept: the
newer releases have CUDA and take 5.5 GB and three minutes. `2.99.0=2.13.0` is PyTorch 2.13.0 that
says it were 2.99.0: a release that nobody has tried.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from left_out import left_out

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "torch-matrix"
SUITES = (
    *("tests/contract/torch", "tests/numerics/torch", "tests/unit/torch"),
    *("tests/unit/doctor/test_watch.py", "tests/unit/test_autoload.py"),
)
SHOW = """
import torch, bestof.torch as bt
bt.enable()
print("PyTorch", torch.__version__, "leaves out:", bt.summary().left_out or "nothing")
"""


@dataclass(frozen=True)
class Release:
    """A release to test: the version that PyTorch shall tell, and the one that is installed."""

    told: str
    installed: str

    @property
    def folder(self) -> Path:
        return FOLDER / self.told


def parse(text: str) -> Release:
    """Return the release of a text such as 2.14.1 or 2.99.0=2.13.0."""
    match = re.fullmatch(r"(\d+\.\d+\.\d+)(?:=(\d+\.\d+\.\d+))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a release such as 2.14.1; got {text!r}")
    return Release(match[1], match[2] or match[1])


def prepare(release: Release, wheel: Path, extra: str, alone: Sequence[str]) -> Path:
    """Return the Python of the release's environment, with the wheel installed.

    alone: packages that are installed without what they require.
    """
    python = release.folder / "bin" / "python"
    if not python.exists():
        venv.create(release.folder, with_pip=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    # torch first, by its exact version: the wheel only wants one that is new enough.
    subprocess.run([*pip, f"torch=={release.installed}", "numpy"], check=True)
    subprocess.run([*pip, f"{wheel}[{extra}]"], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", str(wheel), *alone], check=True)
    if release.told != release.installed:
        rename(python, release.told)
    return python


def rename(python: Path, told: str) -> None:
    """Let the installed PyTorch tell another version. Processes that tests start see it too."""
    where = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    done = subprocess.run([str(python), "-c", where], check=True, capture_output=True, text=True)
    file = Path(done.stdout.strip()) / "version.py"
    line = f"__version__ = '{told}'"
    text, count = re.subn(r"^__version__ = .*$", line, file.read_text(), flags=re.MULTILINE)
    if count != 1:
        sys.exit(f"{file} has {count} lines that tell the version; expected one")
    file.write_text(text)


def run(python: Path, tests: Sequence[str], processes: int) -> bool:
    """Print what bestof leaves to PyTorch, and run the tests. Return whether all of them passed."""
    # A folder that only the tests see: the tests of the checkout, but the installed bestof.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**kept, "BESTOF_STORE": "off"}
    subprocess.run([str(python), "-c", SHOW], env=environment, cwd=FOLDER, check=True)
    pytest = [str(python), "-P", "-m", "pytest", "-q", "-m", "not long", "--durations=20"]
    pytest += ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder", *tests]
    return subprocess.run(pytest, env=environment, cwd=ROOT, check=False).returncode == 0


def main() -> None:
    """Test the releases that the arguments name, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("releases", nargs="+", type=parse, metavar="RELEASE")
    parser.add_argument("--wheel", type=Path, required=True, help="the wheel of this checkout")
    parser.add_argument("--extra", default="torch,view,dev", help="the extras to install")
    parser.add_argument(
        "--suite", action="append", help="tests to run (default: those that a release can change)"
    )
    parser.add_argument("--alone", action="append", default=[], help="packages without theirs")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if not options.wheel.is_file():
        parser.error(f"--wheel: there is no file {str(options.wheel)!r}; build it first")
    FOLDER.mkdir(parents=True, exist_ok=True)
    tests = options.suite or [*SUITES, *left_out()]
    failed = []
    for release in options.releases:
        print(f"== PyTorch {release.told}", flush=True)
        try:
            python = prepare(release, options.wheel.resolve(), options.extra, options.alone)
            passed = run(python, tests, options.processes)
        except subprocess.CalledProcessError as error:
            print(f"failed: {error}", flush=True)
            passed = False
        if not passed:
            failed.append(release.told)
    if failed:
        sys.exit(f"failed with PyTorch {', '.join(failed)}")


if __name__ == "__main__":
    main()
