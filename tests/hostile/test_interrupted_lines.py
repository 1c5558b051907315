"""A program is interrupted at every line of the engine, once in each run.

Of layers, plans and stores this is a sample; `make hostile` tries more.
"""

from __future__ import annotations

import os
from pathlib import Path

import interrupted_plan
import interrupted_store
import interrupted_switches
import interrupted_torch
import pytest
import torch
from interrupted import Interrupt, Interruption, TimeLimit, sweep
from interrupted_selector import SCENARIOS, faults
from interrupted_torch import in_bestof

from bestof.selection.state.journal import DecisionEntry, Entry, Journal
from bestof.torch.ops.attention.forward import AttentionForward
from bestof.whole_file import check_replaceable, write_whole

# Those in which an interrupt once did harm, and the shortest, are tried at every line.
_WHOLE = ("rounds", "stored", "stored group", "pinned")

# This scenario runs 47,000 lines.
_EVERY = {"evicting": 997}


@pytest.mark.long(every=4)
@pytest.mark.parametrize("kind", [Interrupt, TimeLimit])
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_interrupt_at_any_line_leaves_a_selector_whole(
    name: str, kind: type[BaseException]
) -> None:
    every = 1 if name in _WHOLE and kind is Interrupt else _EVERY.get(name, 17)
    tried, found = faults(name, kind=kind, every=every)
    assert tried > 20
    assert found == []


_STORED = [(name, True) for name in interrupted_torch.STORED]


@pytest.mark.parametrize(
    ("name", "stored"), [(name, False) for name in interrupted_torch.SCENARIOS] + _STORED
)
def test_an_interrupt_leaves_a_layer_whole(name: str, stored: bool) -> None:
    tried, found = interrupted_torch.faults(name, stored=stored, chosen=in_bestof, samples=2)
    assert tried > 1
    assert found == []


@pytest.mark.parametrize("stored", [False, True])
def test_a_decision_whose_note_is_interrupted_is_noted_all_the_same(stored: bool) -> None:
    def notes(filename: str) -> bool:
        files = (("convolution", "layer.py"), ("dispatch", "override.py"))
        return filename.endswith(tuple(os.path.join(*file) for file in files))

    tried, found = interrupted_torch.faults("frozen convolution", stored=stored, chosen=notes)
    assert tried > 5
    assert found == []


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # collected at once
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("instructions", [False, True])
@pytest.mark.parametrize("old", [None, "old"])
def test_an_interrupt_leaves_no_file_beside_a_written_one(
    instructions: bool, old: str | None, tmp_path: Path
) -> None:
    place = tmp_path / "file"

    def run(interruption: Interruption) -> None:
        place.unlink(missing_ok=True)
        if old is not None:
            place.write_text(old)
        ended = interruption.take(lambda: write_whole(place, "new"))
        found = {one.name: one.read_text() for one in tmp_path.iterdir()}
        if ended or "file" not in found:
            assert found == ({"file": "new"} if ended else {})
        else:
            assert found in ({"file": "new"}, {"file": old})
        place.unlink(missing_ok=True)
        interruption.take(lambda: check_replaceable(place))
        assert [*tmp_path.iterdir()] == []

    def in_whole_file(filename: str) -> bool:
        return filename.endswith("whole_file.py")

    tried, found = sweep("file", run, in_whole_file, instructions=instructions)
    assert tried > 40
    assert found == []


def test_an_interrupt_while_attention_is_met_first_leaves_it_to_be_answered_by_cpp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise Interrupt("now")

    attention = AttentionForward()
    x = torch.zeros(1, 2, 256, 64)
    call = attention.call("float32", x, x, x, 0.0, False, None, None)
    assert call is not None
    with monkeypatch.context() as patched:
        patched.setattr("bestof.torch.ops.attention.attention.native_plan", interrupted)
        with pytest.raises(Interrupt):
            attention._native(None, call.problem, *call.operands)  # type: ignore[arg-type]
    attention._native(None, call.problem, *call.operands)  # type: ignore[arg-type]
    assert attention._compiled(call.problem, *call.operands) is not None


@pytest.mark.long
@pytest.mark.parametrize("name", interrupted_plan.SCENARIOS)
def test_an_interrupt_leaves_a_plan_whole(name: str) -> None:
    tried, found = interrupted_plan.faults(name, samples=2)
    assert tried > 1
    assert found == []


@pytest.mark.parametrize("name", interrupted_switches.SCENARIOS)
def test_an_interrupt_leaves_a_switch_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY")  # neighbours are watched where nothing tells it
    tried, found = interrupted_switches.faults(name, every=31)
    assert tried > 2
    assert found == []


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", interrupted_store.SCENARIOS)
def test_an_interrupt_leaves_a_store_whole(name: str) -> None:
    tried, found = interrupted_store.faults(name, samples=4)
    assert tried > 3
    assert found == []


def test_an_entry_whose_delivery_is_interrupted_is_delivered_again() -> None:
    heard: list[Entry] = []
    interruptions = [Interrupt("now")]

    def listen(entry: Entry) -> None:
        if interruptions:
            raise interruptions.pop()
        heard.append(entry)

    journal = Journal(listener=listen)
    entries = [DecisionEntry(problem, "a", "measured") for problem in range(3)]
    for entry in entries:
        journal.add(entry)
    with pytest.raises(Interrupt):
        journal.deliver()
    assert heard == []
    journal.deliver()
    assert heard == entries


def test_a_listener_that_exits_is_told_no_more_than_twice() -> None:
    def listen(_: Entry) -> None:
        raise SystemExit(3)

    journal = Journal(listener=listen)
    journal.add(DecisionEntry(1, "a", "measured"))
    for _ in range(2):
        with pytest.raises(SystemExit):
            journal.deliver()
    journal.deliver()
    assert not journal.undelivered
