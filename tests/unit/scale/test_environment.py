"""The environment variables that `bestof scale --environment` tries, with runs that are fakes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bestof.cli.scale_command import trial_command
from bestof.recipe.contestant import OutOfTime, ScriptFailed
from bestof.scale.environment import Candidate, candidates
from bestof.scale.environment_search import EnvironmentSearch, words
from bestof.scale.split import Split

GLIBC = ("glibc", "2.36")


def root(folder: Path, pages: str = "always [madvise] never") -> Path:
    file = folder / "sys/kernel/mm/transparent_hugepage/enabled"
    file.parent.mkdir(parents=True)
    file.write_text(pages)
    return folder


def found(folder: Path, **more: Any) -> dict[str, Candidate]:
    known: dict[str, Any] = {"find": lambda name: None, "environment": {}, "libc": GLIBC, **more}
    threads = known.pop("threads", 2)
    return {one.name: one for one in candidates(threads, root=folder, **known)}


def test_a_library_that_is_absent_is_named(tmp_path: Path) -> None:
    one = found(root(tmp_path))
    assert one["allocator jemalloc"].why == "there is no libjemalloc in the system's library paths"
    assert one["allocator tcmalloc"].why == (
        "there is no libtcmalloc or libtcmalloc_minimal in the system's library paths"
    )
    assert one["transparent huge pages"].variables == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    assert one["threads that spin while they wait"].variables == {"OMP_WAIT_POLICY": "active"}


def test_a_library_that_is_present_is_preloaded_before_others(tmp_path: Path) -> None:
    names = {"jemalloc": "libjemalloc.so.2", "tcmalloc_minimal": "libtcmalloc_minimal.so.4"}
    one = found(root(tmp_path), find=names.get, environment={"LD_PRELOAD": "own.so"})
    assert one["allocator jemalloc"].variables["LD_PRELOAD"] == "libjemalloc.so.2:own.so"
    assert one["allocator tcmalloc"].variables == {"LD_PRELOAD": "libtcmalloc_minimal.so.4:own.so"}


@pytest.mark.parametrize(
    ("more", "pages", "name", "why"),
    [
        ({"libc": ("glibc", "2.31")}, "[madvise]", "transparent huge pages", "glibc 2.35 or later"),
        ({"libc": ("", "")}, "[madvise]", "transparent huge pages", "glibc 2.35 or later"),
        ({}, "[always] madvise", "transparent huge pages", "all memory has them already"),
        ({}, "always [never]", "transparent huge pages", "the kernel does not give them"),
        ({"threads": 1}, "", "threads that spin while they wait", "waits for no other"),
        (
            {"environment": {"OMP_WAIT_POLICY": "passive"}},
            "",
            "threads that spin while they wait",
            "OMP_WAIT_POLICY is set already",
        ),
    ],
)
def test_what_cannot_have_an_effect_is_not_tried(
    tmp_path: Path, more: dict[str, Any], pages: str, name: str, why: str
) -> None:
    one = found(root(tmp_path, pages), **more)[name]
    assert why in one.why
    assert not one.variables


class Machine:
    """A step takes 1 s; variables change that. Each turn takes 1 s."""

    def __init__(self, effects: dict[str, float], failing: str = "") -> None:
        self.effects, self.failing = effects, failing
        self.now, self.open = 0.0, 0
        self.started: list[str] = []

    def make(self, variables: Mapping[str, str]) -> FakeRun:
        self.started.append(words(variables))
        self.open += 1
        return FakeRun(self, variables)


class FakeRun:
    report: dict[str, Any]

    def __init__(self, machine: Machine, variables: Mapping[str, str]) -> None:
        self.machine, self.variables = machine, variables

    def turn(self, deadline: float) -> float:
        self.machine.now += 1.0
        if self.machine.now > deadline:
            raise OutOfTime("the time is up")
        if self.machine.failing in self.variables:
            raise ScriptFailed("it failed with status 1: no such library")
        seconds = 1.0
        for name in self.variables:
            seconds *= self.machine.effects.get(name, 1.0)
        return seconds

    def close(self) -> None:
        self.machine.open -= 1


def searched(machine: Machine, *tried: Candidate, **more: Any) -> EnvironmentSearch:
    search = EnvironmentSearch(
        machine.make,
        100,
        lambda: more.get("free"),
        deadline=more.get("deadline", 1e6),
        tell=lambda line: None,
        clock=lambda: machine.now,
    )
    search.run(tried)
    assert machine.open == 0
    return search


A, B = Candidate("first", {"A": "1"}), Candidate("second", {"B": "two words"})


def test_only_what_is_faster_on_top_of_the_kept_is_advised() -> None:
    machine = Machine({"A": 0.5, "B": 1.0})
    search = searched(machine, A, B)
    assert search.kept == {"A": "1"}
    assert machine.started == ["", "A=1", "A=1", "A=1 B='two words'"]
    assert [one.line() for one in search.outcomes] == [
        "first (A=1): faster; speed-up 2.000 (2.000 to 2.000, 6 pairs)",
        "second (B='two words'): not confirmed faster; speed-up 1.000 (1.000 to 1.000, 6 pairs)",
    ]


def test_a_candidate_that_fails_or_cannot_be_tried_is_told() -> None:
    absent = Candidate("third", why="there is no libthird")
    search = searched(Machine({"B": 0.5}, failing="A"), A, absent, B)
    assert search.kept == {"B": "two words"}
    assert [one.why for one in search.outcomes] == [
        "it failed with status 1: no such library",
        "not tried: there is no libthird",
        "",
    ]


def test_two_allocators_are_not_mixed() -> None:
    pages = Candidate("pages", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})
    preloads = [Candidate(name, {"LD_PRELOAD": f"{name}.so"}) for name in ("one", "other")]
    search = searched(Machine({"LD_PRELOAD": 0.5}), *preloads, pages)
    assert search.kept == {"LD_PRELOAD": "one.so"}
    assert [one.why for one in search.outcomes[1:]] == [
        "not tried: LD_PRELOAD=one.so was faster"
    ] * 2


def test_too_little_time_or_memory_decides_nothing() -> None:
    search = searched(Machine({"A": 0.5}), A, deadline=5.0)
    assert search.outcomes[0].why.startswith("not decided: its share of the time was up")
    machine = Machine({"A": 0.5})
    search = searched(machine, A, free=150)
    assert search.outcomes[0].why.startswith("not tried: it needs about")
    assert machine.started == []


def test_an_interrupted_candidate_has_no_line() -> None:
    class Interrupted(Machine):
        def make(self, variables: Mapping[str, str]) -> FakeRun:
            if "B" in variables:
                raise KeyboardInterrupt
            return super().make(variables)

    machine = Interrupted({"A": 0.5})
    search = EnvironmentSearch(
        machine.make, 100, lambda: None, deadline=1e6, tell=lambda _: None, clock=lambda: 0.0
    )
    with pytest.raises(KeyboardInterrupt):
        search.run([A, B])
    assert machine.open == 0
    assert [one.candidate for one in search.outcomes] == [A]


def test_a_trial_has_its_variables_from_the_start() -> None:
    split = Split(((0,),), 4)
    command = trial_command(["train.py"], {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, split, 5, 6)
    place = command.index(sys.executable)
    shown = "import os; print(os.environ['GLIBC_TUNABLES'])"
    done = subprocess.run(
        [*command[: place + 1], "-c", shown], capture_output=True, text=True, check=True
    )
    assert done.stdout == "glibc.malloc.hugetlb=1\n"
    assert trial_command(["train.py"], {}, split, 5, 6) == command[place:]
