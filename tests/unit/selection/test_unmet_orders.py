"""Orders that no selector obeys are reported once, at exit. Warnings point at the caller."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_program import Program

from bestof import Alternative, BestOf
from bestof.errors import BestofWarning

PROGRAM = """
import bestof
bestof.use_store(None)
{more}
sorter = bestof.BestOf("sorter", [("a", sorted), ("b", sorted)], len)
print(sorter([2, 1]))
"""


def run(tmp_path: Path, more: str = "", **environment: str) -> str:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(more=more))
    ended = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    assert ended.stdout == "[1, 2]\n"
    return ended.stderr


def test_a_forced_selector_that_was_never_made(tmp_path: Path) -> None:
    told = run(tmp_path, BESTOF_FORCE="sorter=b,sorted=a")
    assert (
        told.count(
            "BestofWarning: BESTOF_FORCE: sorted=a had no effect: the program made no "
            "selector of this name"
        )
        == 1
    )
    assert "sorter=b" not in told


def test_a_fixed_alternative_that_no_selector_has(tmp_path: Path) -> None:
    policy = "bestof.use_policy(bestof.selection.Fixed({!r}))"
    told = run(tmp_path, policy.format("c"))
    unmet = (
        "the policy fixed:c had no effect: no selector without a policy of its own has an "
        "alternative of this name"
    )
    assert told.count(unmet) == 1
    assert run(tmp_path, policy.format("b")) == ""
    own = "own = bestof.BestOf('own', [('c', len)], len, policy='race')\n"
    assert run(tmp_path, own + policy.format("c")).count(unmet) == 1


def test_a_policy_of_its_own_keeps_a_selector_from_being_told(tmp_path: Path) -> None:
    """No order of the process holds for it, so none can be disobeyed."""
    more = """
odd = bestof.Alternative("b", abs, supports=lambda n: n % 2)
own = bestof.BestOf("own", [("a", abs), odd], abs, policy="race")
bestof.use_policy("fixed:b")
assert [own(n) for n in (1, 2)] == [1, 2]
"""
    assert run(tmp_path, more) == ""


def test_a_fixed_alternative_that_does_not_apply_is_told_once_with_a_problem(
    tmp_path: Path,
) -> None:
    more = """
odd = bestof.Alternative("b", abs, supports=lambda n: n % 2)
early = bestof.BestOf("early", [("a", abs), odd, ("c", abs)], abs)
bestof.use_policy("fixed:b")
for n in (1, 2, 2, 3, 4, 6):
    assert early(n) == n
assert early.explain(1).decision == "b"
assert early.explain(2).decision == "a"
"""
    told = run(tmp_path, more)
    assert told.count("BestofWarning") == 1
    assert (
        "the policy fixed:b was not obeyed for BestOf('early'), problem 2, and for 2 more: it does "
        "not apply there; the first alternative that does was taken" in told
    )


def test_a_fixed_alternative_of_a_selector_made_before_is_met(tmp_path: Path) -> None:
    more = """
early = bestof.BestOf('early', [('c', len)], len)
bestof.use_policy(bestof.selection.Fixed('c'))
"""
    assert run(tmp_path, more) == ""


def test_a_process_without_selectors_says_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import bestof"],
        env={**os.environ, "BESTOF_FORCE": "x=y"},
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    assert ended.stderr == ""


def broken(x: int) -> int:
    raise ValueError("no")


@pytest.mark.parametrize("how", ["raises", "wrong", "supports", "listener", "neighbours", "store"])
def test_a_warning_points_at_the_line_that_called(how: str, program: Program) -> None:
    class Gone:
        def load(self, *key: object) -> None:
            raise OSError("gone")

        save = pinned = load

    pairs = [("first", abs), ("other", broken)]
    options = {}
    if how == "wrong":
        pairs, options = [("first", abs), ("other", lambda x: 3)], {"check": 0.0}
    elif how == "supports":
        refusing = Alternative("other", abs, supports=broken)
        pairs = [("first", abs), refusing, ("third", abs)]  # type: ignore[list-item]
    elif how == "listener":
        pairs, options = [("first", abs)], {"on_event": broken}
    elif how == "neighbours":
        pairs, options = [("first", abs), ("other", abs)], {"neighbours": broken}
    elif how == "store":
        pairs, options = [("first", abs), ("other", abs)], {"store": Gone()}
    options["clock"] = program.clock  # type: ignore[assignment]
    selector = BestOf("pointed", pairs, lambda x: x, **options)  # type: ignore[arg-type]

    def line_of_the_caller() -> None:
        for _ in range(2):
            selector(-1)

    with pytest.warns(BestofWarning) as caught:
        line_of_the_caller()
    assert [(warning.filename, warning.lineno) for warning in caught] == [
        (__file__, line_of_the_caller.__code__.co_firstlineno + 2)
    ]
