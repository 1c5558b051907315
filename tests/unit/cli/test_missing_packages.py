"""A command that needs an optional package says in one line which, and how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """\
import sys
for name in {missing!r}:
    sys.modules[name] = None
from bestof.cli import main
sys.exit(main({arguments!r}))
"""


@pytest.mark.parametrize(
    ("missing", "arguments", "name", "extra"),
    [
        (["torch"], ["bench", "conv", "i3x8x8,k4x3x3"], "PyTorch", "torch"),
        (["torch", "numpy"], ["bench", "model", "vgg16"], "PyTorch", "torch"),
        (["numpy"], ["bench", "transpose"], "NumPy", "kernels"),
        (["torch"], ["bench", "dispatch", "--torch"], "PyTorch", "torch"),
        (["torch"], ["bench", "conv", "--peers", "--quick"], "PyTorch", "torch"),
        (["matplotlib"], ["bench", "model", "vgg16", "--png", "x.png"], "matplotlib", "plot"),
        (
            ["matplotlib"],
            ["bench", "conv", "--peers", "--quick", "--roofline", "x.png"],
            "matplotlib",
            "plot",
        ),
    ],
)
def test_a_missing_package_is_one_line(
    missing: list[str], arguments: list[str], name: str, extra: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=missing, arguments=arguments)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.startswith("bestof: ")
    assert done.stderr.count("\n") == 1
    assert name in done.stderr
    assert f"pip install 'bestof-select[{extra}]'" in done.stderr


def test_a_missing_module_of_bestof_is_not_blamed_on_extras() -> None:
    code = WITHOUT.format(missing=["bestof.bench.transpose"], arguments=["bench", "transpose"])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False
    )
    assert "Traceback" in done.stderr
    assert "pip install" not in done.stderr
