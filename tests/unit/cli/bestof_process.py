"""A process that runs `bestof` over a fake engine and a fake PyTorch.

The fakes leave marks that real ones would not, so that a test shows which one it met.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# The console script, with the parts that stand below the command line replaced.
DRIVER = """\
import sys, types
from bestof import selection
from bestof.selection.reports.report import AlternativeReport, ProblemReport, Report, SelectorReport

class Store:
    url = "sqlite:///fake.db"

    def flush(self, seconds):
        return True

def use_store(store):
    selection.default_store = selection.shared_store = lambda: store

def open_store(url):
    store = Store()
    store.url = url
    return store

found = Report(())
if {selectors}:
    slow = AlternativeReport("slow", "measured", 2.0, trials=3)
    fast = AlternativeReport("fast", "chosen", 1.0, trials=3)
    problem = ProblemReport("n=3", "fast", "measured", (slow, fast))
    found = Report((SelectorReport("fake selector", 1, (problem,), {selectors} - 1, 9.0, 3.0),))
selection.report_all = lambda: found
selection.default_store = selection.shared_store = Store
selection.open_store = open_store
selection.use_store = use_store
selection.parse_policy = lambda text: text
selection.use_policy = lambda policy: print("policy", policy)

integration = types.ModuleType("bestof.torch")
def enable(config=None):
    import torch
    torch.enabled = True if config is None else config["kernel"]["accuracy"]
    if hasattr(torch, "breaks"):
        raise RuntimeError("fake refusal")
integration.enable = enable
integration.summary = lambda: types.SimpleNamespace(
    keeps_freed=True, left_out=(), threads=None, held=types.SimpleNamespace(limit=None)
)
sys.modules["bestof.torch"] = integration
orders = types.ModuleType("bestof.torch.enable")
def order_accuracy(level):
    import torch
    torch.ordered = level
orders.order_accuracy = order_accuracy
sys.modules["bestof.torch.enable"] = orders

from bestof.cli import main
sys.exit(main())
"""


class Bestof:
    """Run `bestof` and `python` in processes of their own, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.selectors = 0

    def write(self, name: str, text: str | bytes) -> Path:
        """A file in the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def __call__(
        self, *arguments: str, stdin: bytes = b"", flags: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `bestof` with these arguments, and the interpreter with these flags."""
        driver = DRIVER.replace("{selectors}", str(self.selectors))
        path = self.write(".driver/bestof", driver)
        return self._run([sys.executable, *flags, str(path), *arguments], stdin)

    def python(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run the interpreter with these arguments."""
        return self._run([sys.executable, *arguments], stdin)

    def _run(self, command: list[str], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        # Without PYTHONUNBUFFERED and its like, which change what a program's last moments look
        # like.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
        }
        return subprocess.run(
            command,
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            timeout=250,
            env=environment,
            check=False,
        )
