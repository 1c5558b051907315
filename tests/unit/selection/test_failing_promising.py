"""If all promising alternatives raise, one that was left out answers."""

from __future__ import annotations

from typing import Any

import pytest
from fake_program import Program

from bestof import Alternative, BestOf
from bestof.errors import BestofWarning, NoAlternative


def left_out(program: Program, name: str, function: Any = None) -> Alternative:
    return Alternative(
        name, function or program.function(name, 5.0), unpromising=lambda problem: "thought slow"
    )


def broken(program: Program, name: str) -> tuple[str, Any]:
    return name, program.failing(name, ValueError(f"{name} is broken"))


def decided(selector: BestOf) -> str | None:
    return selector.explain(1).decision


@pytest.mark.parametrize("names", [["only"], ["a", "b"]])
@pytest.mark.parametrize("check", [None, lambda expected, result: expected == result])
def test_one_that_was_left_out_answers(program: Program, names: list[str], check: Any) -> None:
    rows = [broken(program, name) for name in names]
    selector = program.selector([*rows, left_out(program, "slow")], check=check)
    with pytest.warns(BestofWarning, match="is broken"):
        assert selector(1) == "slow"
    assert [selector(1) for _ in range(3)] == ["slow"] * 3
    assert program.taken() == [*names, *["slow"] * 4]
    assert decided(selector) == "slow"


def test_the_first_that_works_answers(program: Program) -> None:
    also_broken = left_out(program, "b", program.failing("b", TypeError("b too")))
    selector = program.selector([broken(program, "a"), also_broken, left_out(program, "c")])
    with pytest.warns(BestofWarning, match="was disqualified"):
        assert selector(1) == "c"
    assert selector(1) == "c"
    assert program.taken() == ["a", "b", "c", "c"]
    assert [one.status for one in selector.explain(1).alternatives] == [
        "disqualified",
        "disqualified",
        "chosen",
    ]


def test_a_call_that_all_fail_leaves_out_again(program: Program) -> None:
    """The call is at fault: the next one finds the alternatives as they were."""

    def only(n: int, fails: bool) -> str:
        if fails:
            raise ValueError("no such thing")
        return "only"

    def slow(n: int, fails: bool) -> str:
        program.calls.append("slow")
        return only(n, fails)

    selector = program.selector([("only", only), left_out(program, "slow", slow)])
    with pytest.raises(ValueError, match="no such thing"):
        selector(1, True)
    assert program.taken() == ["slow"]
    assert [one.status for one in selector.explain(1).alternatives] == ["chosen", "left out"]
    assert [selector(1, False) for _ in range(3)] == ["only"] * 3
    assert program.taken() == []


def test_an_interrupt_leaves_out_again(program: Program) -> None:
    """Else the one thought slow, first in the list, would be what results are compared with."""
    fails = True

    def named(name: str, error: BaseException) -> Any:
        def function(n: int) -> str:
            program.calls.append(name)
            if fails:
                raise error
            return "the same"

        return function

    rows = [(name, named(name, ValueError(name))) for name in "ab"]
    slow = left_out(program, "slow", named("slow", KeyboardInterrupt()))
    selector = program.selector([slow, *rows], check=lambda expected, result: expected == result)
    with pytest.raises(KeyboardInterrupt):
        selector(1)
    assert program.taken() == ["a", "b", "slow"]
    fails = False
    assert [selector(1) for _ in range(6)] == ["the same"] * 6
    assert "slow" not in program.taken()
    assert selector.explain(1).alternatives[0].status == "left out"


def test_what_cannot_run_never_answers(program: Program) -> None:
    unable = Alternative("unable", program.function("unable", 1.0), supports=lambda _: False)
    failing = left_out(program, "slow", program.failing("slow", TypeError("neither")))
    selector = program.selector([broken(program, "a"), failing, unable])
    with pytest.raises(NoAlternative, match=r"a: .*a is broken; slow: .*neither"):
        selector(1)
    assert program.taken() == ["a", "slow"]


def test_a_group_gives_way_in_its_first_stage(program: Program) -> None:
    fails = program.failing("a1", ValueError("a1"))
    rows = [
        Alternative("a", (fails, program.function("a2", 1.0))),
        left_out(program, "b", (program.function("b1", 1.0), program.function("b2", 1.0))),
    ]
    selector = program.selector(rows, lambda n: n)
    with pytest.warns(BestofWarning, match="was disqualified"):
        assert selector(0, 1) == "b1"
    assert selector(1, 1) == "b2"


def test_a_group_of_one_is_settled_after_its_first_stage(program: Program) -> None:
    """A program that never calls the later stages must not take the long way for ever."""
    both = program.function("a1", 1.0), program.function("a2", 1.0)
    slow = left_out(program, "slow", (program.function("s1", 5.0), program.function("s2", 5.0)))
    selector = program.selector([Alternative("a", both), slow], lambda n: n)
    assert selector(0, 1) == "a1"
    assert not selector._knowledge.tunings
    assert selector(1, 1) == "a2"
