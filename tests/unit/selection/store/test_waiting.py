"""The records that wait to be written: how they are found, written, and given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from bestof.selection.store.database import Database, Unavailable
from bestof.selection.store.record import Evidence, Record
from bestof.selection.store.waiting import Waiting


class Keeper:
    """A database that takes records, or says that it is busy."""

    def __init__(self) -> None:
        self.written: list[Record] = []
        self.busy = False

    def write(self, records: Sequence[Record]) -> None:
        if self.busy:
            raise Unavailable("another process writes", busy=True)
        self.written += records


def waiting(keeper: Keeper) -> Waiting:
    return Waiting(cast("Database", keeper), lambda what, advice: None, lambda error: None)


def record(problem: str, alternative: str = "a", selector: str = "s") -> Record:
    return Record(selector, problem, "h", alternative, (Evidence(alternative, "1", (1.0,)),), 1.0)


class Counted:
    """A record that counts who looks at it."""

    looks = 0

    def __init__(self, inner: Record) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        Counted.looks += 1
        return getattr(self._inner, name)


def test_a_read_looks_at_the_records_of_its_problem_alone() -> None:
    held = waiting(Keeper())
    for number in range(2000):
        held.add(cast("Record", Counted(record(str(number)))))
    assert set(held.over({}, ("s", "7", "h"))) == {("s", "7", "h")}
    Counted.looks = 0
    for number in range(100):
        held.over({}, ("s", str(number), "h"))
    assert Counted.looks < 100 * 20


def test_records_of_one_problem_are_absorbed_in_the_order_in_which_they_came() -> None:
    held = waiting(Keeper())
    for alternative in "abc":
        held.add(record("p", alternative))
        held.add(record("q", "z"))
    (found,) = held.over({}, ("s", "p", "h")).values()
    assert found.decision == "c"
    assert {one.alternative for one in found.evidence} == set("abc")
    assert set(held.over({}, "s")) == {("s", "p", "h"), ("s", "q", "h")}
    assert held.over({}, ("s", "r", "h")) == {}


def test_what_is_written_is_found_no_more_and_what_comes_meanwhile_is() -> None:
    keeper = Keeper()
    held = waiting(keeper)
    records = [record(str(number)) for number in range(300)]
    for one in records:
        held.add(one)
    held.write_some()
    assert len(held) == 300 - 256
    late = record("0", "b")
    held.add(late)
    assert held.over({}, ("s", "0", "h")) == {late.key: late}
    held.write_all()
    assert keeper.written == [*records, late]
    assert not held
    assert held.over({}, None) == {}
    assert held.lost == 0


def test_a_busy_database_loses_nothing() -> None:
    keeper = Keeper()
    held = waiting(keeper)
    held.add(record("p"))
    keeper.busy = True
    held.write_some()
    held.add(record("q"))
    assert held.lost == len(held) == 2
    keeper.busy = False
    held.write_all()
    assert [one.problem for one in keeper.written] == ["p", "q"]


def test_records_of_one_selector_are_removed_and_the_others_keep_their_order() -> None:
    keeper = Keeper()
    held = waiting(keeper)
    for number in range(4):
        held.add(record(str(number), selector="s" if number % 2 else "t"))
    assert held.remove("s") == {("s", "1", "h"), ("s", "3", "h")}
    assert held.over({}, ("s", "1", "h")) == {}
    held.write_all()
    assert [one.problem for one in keeper.written] == ["0", "2"]
