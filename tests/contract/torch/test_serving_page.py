"""The code of docs/serving.md runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_program_tells_the_threads_of_one_processor() -> None:
    """With one processor and two threads, as in a container with a quota of one."""
    (program,) = PROGRAMS
    one = min(os.sched_getaffinity(0))
    before = f"import os, torch; torch.set_num_threads(2); os.sched_setaffinity(0, {{{one}}})\n"
    after = "assert torch.get_num_threads() == 2, torch.get_num_threads()\n"
    done = subprocess.run(
        [sys.executable, "-c", before + program + after],
        env=os.environ | {"BESTOF_STORE": "off"},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert done.stdout.startswith("Lowered(before=2, now=1, limit=")
    assert "PyTorch computes on 1 in place of 2 threads" in done.stderr
