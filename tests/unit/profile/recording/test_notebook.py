"""A capture inside of a notebook kernel: its cells' output is theirs, and lines find modules."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty
from typing import Any

import pytest

pytest.importorskip("torch")
manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

CELL = """
import os, torch
from bestof import profile
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
with profile.capture() as captured:
    for number in range(2):
        print("step", number)
        os.write(1, b"from descriptor 1\\n")
        model(torch.ones(2, 3, 12, 12)).sum().backward()
found = captured.profile
"""
QUESTION = """
{
    "modules": sorted({span.module for span in found.spans if span.kind == "line"}),
    "unknown": found.unknown,
    "unattributed": found.unattributed,
    "steps": len(found.steps),
}
"""


@pytest.fixture
def client() -> Iterator[Any]:
    kernel, client = manager.start_new_kernel(startup_timeout=100)
    try:
        yield client
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def run(client: Any, code: str) -> tuple[str, str]:
    """Run a cell; return what it printed, and the text of its value."""
    asked = client.execute(code)
    printed, value = "", ""
    while True:
        try:
            message = client.get_iopub_msg(timeout=100)
        except Empty:
            pytest.fail(f"the kernel is silent after {printed!r}")
        if message["parent_header"].get("msg_id") != asked:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            printed += content["text"]
        elif kind == "execute_result":
            value = content["data"]["text/plain"]
        elif kind == "error":
            pytest.fail("\n".join(content["traceback"]))
        elif kind == "status" and content["execution_state"] == "idle":
            return printed, value


@pytest.mark.long
def test_a_cell_is_captured(client: Any) -> None:
    printed, _ = run(client, CELL)
    assert "step 0" in printed
    assert "step 1" in printed
    assert "onednn_verbose" not in printed
    _, value = run(client, QUESTION)
    assert value == "{'modules': ['0'], 'unknown': 0, 'unattributed': 0, 'steps': 2}"


@pytest.mark.long
def test_a_cell_that_raises_keeps_its_profile(client: Any) -> None:
    run(client, CELL.replace("number in range(2)", "number in range(1)"))
    failing = "try:\n    with profile.capture() as captured:\n        model(torch.ones(2, 3, 9, 9))"
    run(client, f"{failing}\n        raise KeyError\nexcept KeyError:\n    pass")
    _, value = run(client, "len(captured.profile.spans) > 0")
    assert value == "True"
