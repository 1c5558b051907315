"""The programs of docs/serving.md run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
FITTED, SWITCHED_OFF = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_program_tells_the_threads_of_one_processor() -> None:
    """With one processor and two threads, as in a container with a quota of one."""
    one = min(os.sched_getaffinity(0))
    before = f"import os, torch; torch.set_num_threads(2); os.sched_setaffinity(0, {{{one}}})\n"
    after = "assert torch.get_num_threads() == 2, torch.get_num_threads()\n"
    done = _run(before + FITTED + after)
    assert done.stdout.startswith("Lowered(before=2, now=1, limit=")
    assert "PyTorch computes on 1 in place of 2 threads" in done.stderr


def test_neighbours_are_watched_until_the_program_of_the_page_says_no() -> None:
    """The watching thread begins with `enable`, if it can help in this process at all."""
    before = (
        "import threading, bestof.torch as bt\n"
        "from bestof.torch.process.idle_team import can_help\n"
        "from bestof.thread_times import thread_times\n"
        "def watchers():\n"
        " return [t for t in threading.enumerate() if t.name == 'bestof-neighbours']\n"
        "bt.enable()\n"
        "watching = watchers()\n"
        "assert bool(watching) == bool(can_help() and thread_times())\n"
    )
    after = "[one.join(60) for one in watching]\nassert not watchers()\nbt.disable()\n"
    _run(before + SWITCHED_OFF + after)


def _run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"BESTOF_STORE": "off"},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
