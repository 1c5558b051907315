"""The programs of docs/control.md on live checks and budgets run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bestof.selection.state.registry import Defaults
from bestof.torch import disable, enable

PAGE = Path(__file__).parents[3] / "docs" / "control.md"


def test_the_blocks_run_and_live_checks_are_off_until_enabled_again() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    names: dict[str, Any] = {}
    chosen = [one for one in blocks if "live_checks" in one or "budget" in one]
    assert len(chosen) == 2
    for block in chosen:
        exec(compile(block, str(PAGE), "exec"), names)
        if "live_checks" in block:
            assert not Defaults.live_checks.is_on
    enable()
    assert Defaults.live_checks.is_on
    disable()
