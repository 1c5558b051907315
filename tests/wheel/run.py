"""Checks a wheel where there is no compiler; exits with 1 if a check fails.

python tests/wheel/run.py build/wheel/repaired/*.whl --torch torch==2.13.0

The wheel is installed into a new virtual environment outside of the source tree. Its `bin` folder
is the whole PATH, so neither a compiler nor a linker is found. The programs of the folder
`programs` run there, then the core of the tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEGABYTES = 10.0
REACH = 60.0  # seconds from the installation of the wheel to the end of the first tuned step
MODULES = ("bestof/selection/_hot_path", "bestof/kernels/_native", "bestof/torch/backends/_shim")


class Environment:
    """A virtual environment, and a folder to work in, without a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = folder / "venv" / "bin"
        venv.create(folder / "venv", with_pip=True)
        self.pip("install", "--upgrade", "pip")

    def run(self, *arguments: str) -> None:
        """Run the environment's Python. Raises CalledProcessError if it fails."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "BESTOF_", "LD_", "CMAKE_"))
        }
        subprocess.run(
            [str(self._bin / "python"), *arguments],
            check=True,
            cwd=self.folder,
            env={
                **kept,
                "PATH": str(self._bin),
                "CC": "/bin/false",
                "CXX": "/bin/false",
                "BESTOF_STORE": "off",
            },
        )

    def pip(self, *arguments: str) -> None:
        """Run pip. Raises CalledProcessError if it fails."""
        self.run("-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)

    def program(self, name: str) -> None:
        """Run a program of the folder `programs`."""
        print(f"-- {name}", flush=True)
        self.run(str(HERE / "programs" / f"{name}.py"))


def check_file(wheel: Path) -> None:
    """Exit if the file is too large, lacks a compiled module, or carries a library."""
    size = wheel.stat().st_size / 1e6
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    compiled = [name for name in names if ".so" in name]
    print(f"{wheel.name}: {size:.2f} MB, {len(names)} files", flush=True)
    if size > MEGABYTES:
        sys.exit(f"the wheel has {size:.1f} MB; it may have {MEGABYTES:.0f}")
    missing = [one for one in MODULES if not any(name.startswith(f"{one}.") for name in compiled)]
    if missing or len(compiled) != len(MODULES):
        sys.exit(f"expected the compiled modules {MODULES} and no library; got {compiled}")


def check_installed(wheel: Path, torch: str | None) -> None:
    """Install the wheel, and run the programs and the tests. Print when the first step ended."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder))
        environment.pip("install", "--no-index", str(wheel))
        environment.program("selection")
        environment.pip("install", f"{wheel}[kernels]")
        environment.program("kernel")
        environment.pip("install", "--group", f"{HERE.parents[1] / 'pyproject.toml'}:wheel-test")
        print("-- the core of the tests", flush=True)
        environment.run(str(HERE / "core.py"))
    if torch is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder))
        environment.pip("install", torch)
        begin = time.perf_counter()
        environment.pip("install", f"{wheel}[torch]")
        installed = time.perf_counter() - begin
        environment.program("tuned_step")
        seconds = time.perf_counter() - begin
        print(
            f"installed in {installed:.1f} s, the first tuned step ended after {seconds:.1f} s "
            f"(reach: {REACH:.0f} s on an idle machine)"
        )


def main() -> None:
    """Check the wheel that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--torch", help="what pip installs as PyTorch; by default no step is run")
    options = parser.parse_args()
    wheel = options.wheel.resolve()
    check_file(wheel)
    try:
        check_installed(wheel, options.torch)
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed, where the wheel was installed: {' '.join(error.cmd)}")


if __name__ == "__main__":
    main()
