"""A store under kills, crowds, holders, signals and file systems that misbehave; `make hostile`
does it at length."""

from __future__ import annotations

import os
from pathlib import Path

import held
import pytest
import shim
import signals
import store_stress

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]


def test_kills_and_crowds_lose_nothing(tmp_path: Path) -> None:
    found = store_stress.massacre(tmp_path, 10, seed=3) | store_stress.crowd(tmp_path, 10, 3)
    assert {found[name] for name in store_stress.BAD if name in found} == {"0"}, found


@pytest.mark.parametrize("hold", [None, "write", "read"])
def test_no_call_asks_for_more_than_5_ms_of_a_store_that_is_held(
    tmp_path: Path, hold: str | None
) -> None:
    found = held.waits(tmp_path / "d", 30, hold=hold)
    assert found["above"] == 0, found
    assert found["traceback"] == "", found
    assert len(found["told"]) == (hold is not None), "what is lost is told, once"
    assert found["kept"] == (30 if hold is None else 0)


@pytest.mark.parametrize("mode", shim.MODES)
def test_no_call_asks_for_more_than_5_ms_of_a_file_system_that_misbehaves(
    tmp_path: Path, mode: str
) -> None:
    library = shim.build(tmp_path)
    if library is None:
        pytest.skip("no C compiler: the preloaded library cannot be made")
    found = held.waits(tmp_path / "d", 30, library=library, mode=mode)
    assert found["above"] == 0, found
    assert found["traceback"] == "", found
    if mode == "slow":
        assert found["kept"] > 0 or found["told"]
    else:
        assert found["kept"] == 0
        assert any("decisions are lost: 30" in told for told in found["told"]), found["told"]


def test_signals_leave_no_transaction_and_take_no_decision(tmp_path: Path) -> None:
    found = signals.interrupt_calls(tmp_path, 60, seed=5)
    assert found["decisions lost to a signal"] == 0, found
    assert found["transactions left open"] == found["stores not written"] == 0, found
    ended = signals.end_by_signal(tmp_path, 8, seed=5)
    assert ended["stores that did not open whole"] == 0
