"""Evidence is valid for one function only, not for another program's or an older version."""

from __future__ import annotations

import copy
import functools
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_program import Clock

from bestof import Alternative, BestOf
from bestof.errors import BestofWarning
from bestof.selection.identity.host import host
from bestof.selection.identity.version import has_code_of, is_former, places, version_of
from bestof.selection.state.journal import TrialEntry
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.record import Evidence, Record

PROGRAM = """
import sys
from bestof import BestOf
now, cost = 0.0, {cost}
def took(name):
    global now
    now += cost[name]
    return name
pairs = [("python", lambda x: took("python"){edit}), ("numpy", lambda x: took("numpy"))]
total = BestOf("total", pairs, len, policy="rounds:rounds=2", clock=lambda: now, store=sys.argv[1])
for _ in range(6):
    answer = total([1, 2])
print(total.explain([1, 2]).source, answer.split()[0])
"""


def run(path: Path, store: Path, **words: Any) -> tuple[str, str]:
    path.write_text(PROGRAM.format(**{"edit": "", "cost": {"python": 2.0, "numpy": 1.0}, **words}))
    command = [sys.executable, str(path), f"sqlite:///{store}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


def test_two_scripts_with_the_same_lambdas_do_not_share_decisions(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    assert run(tmp_path / "one.py", store) == ("measured numpy", "")
    assert run(tmp_path / "one.py", store) == ("stored numpy", "")
    (tmp_path / "b").mkdir()
    told, warned = run(tmp_path / "b" / "two.py", store, cost={"python": 1.0, "numpy": 2.0})
    assert told == "measured python"
    assert warned.count("BestofWarning") == 1
    assert "two.py:12: BestofWarning" in warned  # the line that calls the selector
    assert "one.py" in warned


def test_an_edited_function_is_measured_anew(tmp_path: Path) -> None:
    script, store = tmp_path / "one.py", tmp_path / "store.sqlite"
    assert run(script, store)[0] == "measured numpy"
    edited, warned = run(script, store, edit=" + ' faster'", cost={"python": 0.5, "numpy": 1.0})
    assert (edited, warned) == ("measured python", "")


def holding(value: Any) -> Callable[[int], Any]:
    return lambda x: (x, value)


def adding(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def called(*args: Any) -> Any:
        return f(*args) + 1

    return called


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: float) -> float:
        return x * self.factor

    def method(self, x: float) -> float:
        return x * self.factor


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x.a, lambda x: x.b),
        (lambda x, y=1: x, lambda x, y=2: x),
        (lambda x, *, y=1: x, lambda x, *, y=2: x),
        (lambda x: [y + 1 for y in x], lambda x: [y + 2 for y in x]),
        (lambda x: x == 1, lambda x: x == True),  # noqa: E712  equal constants of two types
        (lambda x: x in {"a", "b"}, lambda x: x in {"a", "c"}),
        (holding(1), holding(2)),
        (holding({"a": [1]}), holding({"a": [2]})),
        (holding({1, 2}), holding({1, 3})),
        (holding(lambda x: x + 1), holding(lambda x: x + 2)),
        (functools.partial(pow, 2), functools.partial(pow, 3)),
        (functools.partial(pow, exp=2), functools.partial(pow, exp=3)),
        (Scale(1.0), Scale(2.0)),
        (Scale(1.0).method, Scale(2.0).method),
        (adding(lambda x: x), adding(lambda x: -x)),
        (functools.lru_cache(lambda x: x), functools.lru_cache(lambda x: -x)),
        (math.sin, math.cos),
        (np.add, np.multiply),
        (np.add, math.sin),
        ("a b".split, "a c".split),
    ],
)
def test_different_functions_have_different_identities(one: Any, other: Any) -> None:
    assert version_of([one], ()) == version_of([one], ())
    assert version_of([one], ()) != version_of([other], ())


def test_equal_closures_have_equal_identities_whatever_they_share() -> None:
    inner = (1, (2, 3))
    shared, apart = (inner, inner), ((1, (2, 3)), (1, (int("2"), 3)))
    assert version_of([holding(shared)], ()) == version_of([holding(apart)], ())


def test_a_circle_a_deep_value_and_a_large_one_are_read_to_an_end() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for value in (circle, deep, list(range(10**6))):
        assert places(version_of([holding(value)], ())) == places(version_of([holding(0)], ()))


def doubling(levels: int) -> list[Any]:
    """A list of 2 ** levels numbers, in the memory of a few."""
    found: list[Any] = [0]
    for _ in range(levels):
        found = [found, found]
    return found


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


class Unreadable:
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __call__(self, x: float) -> float:
        return x


class EditedUnreadable(Unreadable):
    def __call__(self, x: float) -> float:
        return -x


EditedUnreadable.__qualname__ = "Unreadable"


@pytest.mark.parametrize("depends", [(), ("v1",)])
@pytest.mark.parametrize(
    "value",
    [circle(), doubling(40), list(range(10**6)), "x" * 10**7, 10**6000],
    ids=["circle", "doubling", "large", "text", "number"],
)
def test_an_edit_shows_beside_data_that_is_hard_to_read(
    value: Any, depends: tuple[str, ...]
) -> None:
    before, after = (version_of([f], depends) for f in (holding(value), lambda x: (value, x, 2)))
    digests = [version.rpartition("#")[2][:12] for version in (before, after)]
    assert digests[0] != digests[1]
    assert digests[0] == version_of([holding(0)], depends).rpartition("#")[2][:12]


def test_an_edit_shows_in_an_object_that_cannot_be_read() -> None:
    before, after = version_of([Unreadable()], ()), version_of([EditedUnreadable()], ())
    assert places(before) == places(after)
    assert before != after


def test_long_plain_values_differ() -> None:
    pairs = [(10**6000, 10**6000 + 1), ("x" * 5000, "x" * 4999 + "y"), (b"x" * 5000, b"x" * 5001)]
    for one, other in pairs:
        assert version_of([holding(one)], ()) != version_of([holding(other)], ())
    assert version_of([holding("\ud800" * 5000)], ())


def test_an_object_that_raises_when_read_has_an_identity() -> None:
    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            raise OSError(name)

        def __call__(self) -> None: ...

    assert version_of([Hostile()], ()) == version_of([Hostile()], ())


def test_depends_speaks_for_the_data_and_not_for_the_code() -> None:
    assert version_of([holding(1)], ["v1"]) == version_of([holding(2)], ["v1"])
    assert version_of([Scale(1.0)], ["v1"]) == version_of([Scale(2.0)], ["v1"])
    assert version_of([holding(1)], ["v1"]) != version_of([holding(1)], ["v2"])
    assert version_of([holding(math.sin)], ["v1"]) != version_of([holding(math.cos)], ["v1"])
    assert version_of([lambda: 1], ["v1"]) != version_of([lambda: 2], ["v1"])


def test_a_compiled_function_stands_for_the_version_of_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bestof.selection.identity import version  # noqa: PLC0415  to clear what it has cached

    before = version_of([np.add], ())
    monkeypatch.setattr(np, "__version__", "0.0.1")
    version._version.cache_clear()
    assert version_of([np.add], ()) != before
    version._version.cache_clear()


def test_every_process_computes_the_same_identity(tmp_path: Path) -> None:
    code = """
from bestof.selection.identity.version import version_of
class Held:
    def __init__(self): self.words, self.where = {"a", "b", "c"}, {"x": frozenset({"p", "q"})}
    def __call__(self, x): return x in {"k", "l", "m", "n"}
words = {"one", "two", "three"}
within = lambda x: x in words or x in {"r", "s", "t"}
print(version_of([Held(), within, Held().__call__, object().__repr__], ()))
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    found = set()
    for seed in ("0", "1", "2"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        command = [sys.executable, str(script)]
        found.add(
            subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
        )
    assert len(found) == 1
    version = found.pop()
    assert "script.py:Held" in version
    assert str(tmp_path) not in version


COPIED = """
import functools, os, sys
from bestof import BestOf, Alternative
from bestof.selection.identity import version
from bestof.selection.state import registry
now = 0.0
class Taking:
    def __init__(self, seconds): self.seconds = seconds
    def __call__(self, x):
        global now
        now += self.seconds
def slow(x, by=3.0):
    Taking(by)(x)
def fast(x):
    Taking(1.0)(x)
class Held:
    kind = Taking(2.0)
    def method(self, x): Taking(2.0)(x)
plain = [("slow", slow), ("fast", fast), ("held", Taking(2.0)), ("method", Held().method),
         ("part", functools.partial(slow, by=4.0)), Alternative("stated", fast, depends=["a==1"])]
groups = [("one", [slow, Taking(2.0)]), ("two", [fast, Taking(1.0)])]
if len(sys.argv) > 2:  # as earlier versions did: the path of the script, also in digests
    own = version._version_text
    def named(module): return version._former_name(module, sys.argv[2])
    version._version_text = lambda f, d, naming: own(f, d, named)
usual = dict(policy="rounds:rounds=2", clock=lambda: now, store=sys.argv[1])
made = [BestOf("plain", plain, len, **usual), BestOf("group", groups, len, **usual)]
for _ in range(30):
    made[0]([1, 2])
    for stage in (0, 1):
        made[1](stage, [1, 2])
print(registry.trials_of_all(), *(one.explain([1, 2]).source for one in made))
"""


def copied(script: Path, *arguments: object) -> tuple[str, str]:
    """Run the program there; what it tells, and its warnings."""
    script.parent.mkdir(exist_ok=True)
    script.write_text(COPIED)
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


def test_evidence_of_a_script_holds_for_its_copy_in_another_folder(tmp_path: Path) -> None:
    store, second = tmp_path / "store.sqlite", tmp_path / "second.sqlite"
    told, warned = copied(tmp_path / "here" / "train.py", store)
    assert told.endswith("measured measured")
    assert warned == ""
    assert copied(tmp_path / "there" / "train.py", store) == ("0 stored stored", "")
    lock = tmp_path / "bestof.lock"
    for order in (["export", lock, "--store", store], ["import", lock, "--store", second]):
        command = [sys.executable, "-m", "bestof", "store", *map(str, order)]
        subprocess.run(command, capture_output=True, check=True)
    assert str(tmp_path) not in lock.read_text(), "a lock file does not tell where it was made"
    assert copied(tmp_path / "elsewhere" / "train.py", second) == ("0 stored stored", "")
    told, warned = copied(tmp_path / "elsewhere" / "other.py", second)
    assert told.endswith("measured measured")
    assert "train.py" in warned


@pytest.mark.parametrize("folder", ["here", "another folder of # 7 %"])
def test_evidence_under_the_path_of_a_script_stays_valid(tmp_path: Path, folder: str) -> None:
    store = tmp_path / "store.sqlite"
    former = tmp_path / "here" / "train.py"
    assert copied(former, store, former)[0].endswith("measured measured")
    assert copied(tmp_path / folder / "train.py", store) == ("0 stored stored", "")


def test_the_path_of_another_script_is_no_former_name(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    former = tmp_path / "here" / "train.py"
    copied(former, store, former)
    told, warned = copied(tmp_path / "here" / "other.py", store)
    assert told.endswith("measured measured")
    assert "train.py" in warned


def test_a_script_in_a_folder_with_blanks_has_a_place_without() -> None:
    exec("def f(): pass\nf.__module__ = 'a b#c'", scope := {})
    version = version_of([scope["f"]], ["torch==2 #"])
    assert places(version) == ("a%20b%23c:f",)
    assert has_code_of(version, version)


def test_evidence_of_another_version_orders_the_first_round_and_decides_nothing() -> None:
    clock, store = Clock(), MemoryStore()

    def selector(version: str, **cost: float) -> BestOf:
        def alternative(name: str) -> Alternative:
            return Alternative(name, lambda x: clock.passes(cost[name]), depends=[version])

        return BestOf(
            "it", [alternative(n) for n in cost], lambda x: x, clock=clock, store=store, drift=False
        )

    first = selector("1", a=3.0, b=1.0, c=2.0)
    for _ in range(20):
        first(0)
    assert first.explain(0).decision == "b"
    second = selector("2", a=1.0, b=3.0, c=2.0)
    for _ in range(20):
        second(0)
    tried = [e.alternative for e in second.journal.entries() if isinstance(e, TrialEntry)]
    assert tried[:3] == ["b", "c", "a"]
    assert (second.explain(0).decision, second.explain(0).source) == ("a", "measured")
    assert selector("2", a=1.0, b=3.0, c=2.0).journal.entries() == ()


def test_two_functions_of_one_name_in_a_program_are_warned_of_once() -> None:
    clock, store = Clock(), MemoryStore()

    def settle(function: Callable[[int], None]) -> BestOf:
        selector = BestOf(
            "namesakes",
            [("first", function), ("other", lambda x: clock.passes(9.0))],
            lambda x: x,
            rounds=1,
            clock=clock,
            store=store,
        )
        for problem in (1, 2):
            selector(problem), selector(problem), selector(problem)
        return selector

    kept = [settle(lambda x: clock.passes(1.0))]
    with pytest.warns(
        BestofWarning, match="times of 'first' are those of another function"
    ) as told:
        kept.append(settle(lambda x: clock.passes(2.0 + x)))
    assert [w.filename for w in told] == [__file__]
    assert kept[1].explain(1).source == "measured"


def test_a_copy_has_the_identity_of_its_original() -> None:
    def recursive() -> BestOf:
        selector = BestOf(
            "r", [("a", lambda n: n and selector(n - 1)), ("b", lambda n: 0)], lambda n: n, rounds=1
        )
        return selector

    original = recursive()
    versions = [one.version for one in original._knowledge.alternatives]
    assert [one.version for one in copy.copy(original)._knowledge.alternatives] == versions


def own(module: str) -> Callable[[int], int]:
    """Return a function that lives in a module of bestof."""
    exec("def f(x): return x + 1", scope := {"__name__": module})
    found: Callable[[int], int] = scope["f"]
    return found


def test_a_function_of_bestof_keeps_its_identity_when_it_moves() -> None:
    here, there = own("bestof.torch.one"), own("bestof.other.two")
    version = version_of([here], ["torch==2"])
    assert version == version_of([there], ["torch==2"])
    assert places(version) == ("bestof:f",)
    assert version != version_of([own("bestofall.one")], ["torch==2"])


def test_evidence_under_a_module_of_bestof_stays_valid() -> None:
    function = own("bestof.torch.one")
    former = version_of([function], ["torch==2"]).replace("bestof:", "bestof.torch.gone:")
    assert is_former(former, [function], ["torch==2"])
    assert not is_former(former, [function], ["torch==3"])
    assert not is_former(former.replace(":f#", ":g#"), [function], ["torch==2"])
    assert places(former) == ("bestof:f",)
    depends = ["bestof.torch.kernels:3"]  # no place of a function
    former = version_of([function], depends).replace("bestof:f", "bestof.torch.gone:f")
    assert is_former(former, [function], depends)
    assert places("bestof.bench.py:f#" + "0" * 20) == ("bestof.bench.py:f",)


def test_evidence_of_the_former_places_of_functions_stays_valid() -> None:
    place, depends = "package:Class.method", ("torch==2.13.0", "kernels 12")
    moved = Alternative("a", math.sin, depends, formerly=(place,))
    former = f"{place}#0123456789ab00000000 torch==2.13.0 kernels 12"
    assert moved.has_had(former)
    assert moved.has_had(moved.version)
    assert not Alternative("a", math.sin, depends).has_had(former)
    assert not moved.has_had(former.replace("2.13.0", "2.14.0"))
    assert not moved.has_had(former.replace("method", "another"))
    assert not moved.has_had(f"{former.partition(' ')[0]} {former}")


def test_an_alternative_with_former_places_goes_on_with_their_decision() -> None:
    store = MemoryStore()
    was = "package:Class.method#0123456789ab00000000 v1"
    evidence = tuple(
        Evidence(name, version, tuple([seconds] * 10))
        for name, version, seconds in (
            ("slow", was.replace("method", "other"), 2.0),
            ("a", was, 1.0),
        )
    )
    selector = BestOf(
        "moved",
        [
            Alternative("slow", math.cos, ("v1",), formerly=("package:Class.other",)),
            Alternative("a", math.sin, ("v1",), formerly=("package:Class.method",)),
        ],
        lambda x: x,
        store=store,
    )
    store.save(Record("moved", "1.0", host(), "a", evidence, 0.0))
    selector(1.0)
    assert selector.explain(1.0).source == "stored"
    assert selector.trials == 0


def test_former_places_are_no_namesakes_where_what_they_depend_on_has_changed() -> None:
    store = MemoryStore()
    was = "package:Class.method#0123456789ab00000000 v1"
    evidence = (Evidence("a", was, (1.0,) * 10), Evidence("b", was.replace("1", "2"), (2.0,) * 10))
    store.save(Record("renamed", "1.0", host(), "a", evidence, 0.0))
    former = ("package:Class.method",)
    selector = BestOf(
        "renamed",
        [
            Alternative("a", math.sin, ("v2",), formerly=former),
            Alternative("b", math.cos, ("v2",), formerly=former),
        ],
        lambda x: x,
        store=store,
    )
    selector(1.0)  # warnings are errors
    assert selector.trials == 1
